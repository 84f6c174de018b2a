"""Programs on a backend without callbacks, in a process of their own.

A PJRT client of XLA's CPU, from a package, is registered as a plugin of its own: its devices are not those of
`jax.devices("cpu")`, and its programs cannot call Python. That is what an accelerator of a plugin looks like.
Its process has pytest too, for what is raised.
"""

import importlib.util
import pathlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import xla_bridge

import jaxpyop
from tests.shared import many_programs

PACKAGES = ("fastatomstruct_xla_cpu", "lammps_jax_pjrt_cpu")
F = jnp.float32
X = np.arange(1, 4, dtype=np.float32)
PROGRAMS = {}


def library():
    """The plugin, or None where no package has it."""
    specs = filter(None, map(importlib.util.find_spec, PACKAGES))
    folders = [pathlib.Path(folder) for spec in specs for folder in spec.submodule_search_locations or ()]
    return next((str(found) for folder in folders for found in sorted(folder.rglob("*pjrt*.so"))), None)


def program(func):
    PROGRAMS[func.__name__] = func
    return func


def same(got, wanted):
    assert {device for x in jax.tree.leaves(got) for device in x.devices()} <= set(jax.devices())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5), got, wanted)


class Body:
    """A body that looks at its input, and remembers on which devices it was."""

    __name__ = "body"

    def __init__(self):
        self.devices = set()

    def __call__(self, x):
        self.devices |= set() if isinstance(x, jax.core.Tracer) else x.devices()
        return x * 2 if float(jnp.sum(x)) > 0 else -x


def op(x, body=None):
    return jaxpyop.py_function(body or Body(), [x], F, output_shapes=np.shape(x))


@program
def jit_says_what_to_use():
    assert jax.devices()[0] not in jax.devices("cpu")
    with pytest.raises(NotImplementedError, match=r"(?s)jaxpyop\.jit.*mode='traced'"):
        jax.jit(lambda x: op(x) + 1)(X)


@program
def bodies_get_arrays_of_the_backend_and_those_of_the_cpu_stay_there():
    for device in (jax.devices()[0], jax.devices("cpu")[0]):
        body = Body()
        out = jaxpyop.jit(lambda x, body=body: op(x * 2, body) + 1)(jax.device_put(X, device))
        np.testing.assert_allclose(out, [5, 9, 13])
        assert out.devices() == body.devices == {device}


@program
def only_the_scalar_that_is_asked_for_comes_to_the_host():
    step = jaxpyop.jit(jax.value_and_grad(lambda x: jnp.sum(op(jnp.sin(x)))))
    x, found, kind = jnp.asarray(X), [], type(jnp.ones(1))
    jax.block_until_ready(step(x))
    own = kind._value
    value = property(lambda self: (found.append(self.shape), own.fget(self))[1])
    with mock.patch.object(kind, "_value", value):
        jax.block_until_ready(step(x))
    assert found == [()], found


@program
def numpy_functions():
    pure = lambda x: jaxpyop.numpy_function(np.sin, [x], F)
    stateful = lambda x: jaxpyop.py_func(np.sin, [x], F, ordered=True)
    same(jaxpyop.jit(lambda x: pure(x) + stateful(x * 1))(X), 2 * np.sin([1, 2, 3]))
    same(jax.vmap(pure)(X), np.sin([1, 2, 3]))
    same(jaxpyop.jit(jax.vmap(pure))(X), np.sin([1, 2, 3]))


@program
def gradients_of_any_order():
    cube = lambda x: jaxpyop.py_function(lambda x: jnp.sum(x**3), [x], F, output_shapes=())
    same(jaxpyop.jit(jax.grad(cube))(X), [3, 12, 27])
    same(jaxpyop.jit(jax.hessian(cube))(X), np.diag([6, 12, 18]))
    same(jaxpyop.jit(jax.vmap(jax.grad(op)))(X), [2, 2, 2])
    same(jaxpyop.jit(lambda x: jax.jvp(op, (x,), (x,))[1])(X), [2, 4, 6])


@program
def loops_run_from_python():
    scan = lambda x: lax.scan(lambda c, v: (op(c) * v, c), 0.1, x)
    same(jaxpyop.jit(scan)(X), (4.8, [0.1, 0.2, 0.8]))
    same(jaxpyop.jit(jax.grad(lambda x: scan(x)[0]))(X), [4.8, 2.4, 1.6])
    same(jaxpyop.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: op(c), x))(X), [8, 16, 24])
    same(jaxpyop.jit(lambda x: lax.while_loop(lambda x: x[0] < 8, op, x))(X), [8, 16, 24])
    cond = jaxpyop.jit(lambda x: lax.cond(x[0] > 0, op, lambda x: x, x))
    same((cond(X), cond(-X)), ([2, 4, 6], [-1, -2, -3]))


@program
def effects_run_once_and_in_order_and_errors_are_the_bodys_own():
    seen = []
    note = lambda x, name: jaxpyop.py_func(lambda x: seen.append(name), [x], None)
    jaxpyop.jit(lambda x: [note(x, "a"), note(x + 1, "b"), x][2])(X)
    assert seen == ["a", "b"]
    with pytest.raises(KeyError, match="mine"):
        jaxpyop.jit(lambda x: jaxpyop.py_function({}.pop, ["mine"], F, output_shapes=()) + x)(X)


@program
def saved_programs_run_where_they_were_exported_for():
    body = Body()
    loss = lambda x: jnp.sum(op(jnp.sin(x), body) ** 2)
    names = {"body": body}
    for platforms in (None, [jax.devices()[0].platform], ["cuda", jax.devices()[0].platform]):
        for fun in (loss, jax.value_and_grad(loss)):
            data = jaxpyop.export(fun, functions=names, platforms=platforms)(X).to_bytes()
            same(jaxpyop.load(data, functions=names)(X), jaxpyop.jit(fun)(X))
    assert body.devices == {jax.devices()[0]}


if __name__ == "__main__":
    xla_bridge.register_plugin("standin", library_path=library(), priority=500)
    many_programs.main(PROGRAMS)
