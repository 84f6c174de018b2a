"""`Tout=None` ignores what func returns and gives None; `[]` is strict and gives []."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.shared.util import APIS, every_api
from tests.shared.ways import every_way

XS = jnp.arange(4.0)

IGNORED = {
    "a number": lambda log, x: log.append(float(x)) or 1.5,
    "text": lambda log, x: log.append(float(x)) or "written",
    "an array": lambda log, x: log.append(float(x)) or np.zeros(3),
    "its inputs": lambda log, x: log.append(float(x)) or x,
    "a file's count": lambda log, x: io.StringIO().write(f"{log.append(float(x))}"),
    "an object": lambda log, x: log.append(float(x)) or object(),
    "a list of lists": lambda log, x: log.append(float(x)) or [[], [1, [2, "x"]]],
    "a NaN": lambda log, x: log.append(float(x)) or float("nan"),
}


@pytest.mark.parametrize("returns", IGNORED.values(), ids=IGNORED)
@every_api
def test_none_ignores_what_func_returns(api, returns, route):
    log = []
    assert route(lambda x: api(lambda x: returns(log, x), [x], None), 2.0) is None
    assert log == [2.0]


@every_way
@every_api
def test_none_under_transformations(api, way, route):
    log = []
    assert route(lambda xs: way(lambda x: api(lambda x: log.append(float(x)) or "ignored", [x], None), xs), XS) is None
    assert sorted(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_none_of_a_whole_batch(method, route):
    log = []
    f = jax.vmap(lambda x: jaxpyop.py_func(lambda x: log.append(x.tolist()) or 1, [x], None, vmap_method=method))
    assert route(f, XS) is None
    assert log == [[0, 1, 2, 3]]


def test_none_in_one_branch_of_a_cond(route):
    log = []
    write = lambda x: jaxpyop.py_func(lambda x: log.append(float(x)), [x], None)

    def program(x):
        return lax.cond(x > 0, lambda: write(x), lambda: None)

    assert route(program, 1.0) is None
    assert route(program, -1.0) is None
    assert log == [1.0]


def test_a_decorated_method_that_returns_itself(route):
    class Bar:
        def __init__(self):
            self.n = 0

        @jaxpyop.py_func(Tout=None)
        def update(self, k):
            self.n += int(k)
            return self

    bar = Bar()
    assert route(lambda k: bar.update(k), 3) is None
    assert bar.n == 3


@pytest.mark.parametrize("empty", [[], (), {}], ids=repr)
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_an_empty_promise_is_strict(api, empty, route):
    assert route(lambda x: api(lambda x: None, [x], empty), 1.0) == empty
    with pytest.raises(ValueError, match="declares no result; pass Tout=None to ignore"), jaxpyop.reraise():
        route(lambda x: api(lambda x: 1.0, [x], empty), 1.0)


def test_what_came_back_is_not_shared():
    op = jaxpyop.py_func(Tout=[])(lambda: None)
    op().append(1)
    assert op() == []
