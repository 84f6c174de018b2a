"""What has to work whatever a JAX lacks, and a process that runs it on such a JAX.

`python -m tests.inside.portable_cases NAMES ...` imports jaxpyop anew without names of JAX, once for each argument: one
name, or several with commas. It runs `works` there, and once for each set of features that are lacking also each of
`FEATURES`, with the feature or without it. It prints a line of JSON: {"error": ...} if the import fails, else
{"warnings": [...], "lacks": features, "failed": why}. One process serves many arguments: a start takes a second.
"""

import collections
import contextlib
import importlib
import json
import re
import sys
import traceback
import types
import warnings
from unittest import mock

import jax
import jax.experimental.buffer_callback  # which the package imports, and which needs names that are taken away
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

F = jnp.float32
X = np.float32(3)


def equal(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5)


def refused(text, function, *args):
    with pytest.raises(Exception, match=re.escape(text)):
        jax.block_until_ready(function(*args))


def wait(x):
    jax.block_until_ready(x)
    jax.effects_barrier()


def works(jp):
    """Calls, shapes, gradients, vmap, effects in order, and errors."""
    log = []

    def note(x):
        log.append(float(x))
        return x

    def fails(x):
        raise KeyError("no such thing")

    negative = lambda x, **how: jp.numpy_function(np.negative, [x], F, **how)
    equal(negative(X), -3)
    equal(jax.jit(lambda x: negative(x) + 1)(X), -2)
    equal(jax.jit(lambda x: jp.py_function(lambda x: jnp.stack([x, 2 * x]), [x], F))(X), [3, 6])
    op, slope = lambda x: jp.py_function(lambda x: jnp.sin(x) * x, [x], F), np.cos(3) * 3 + np.sin(3)
    equal(jax.grad(op)(X), slope)
    equal(jax.jit(jax.vmap(jax.grad(op)))(np.full(2, X)), [slope, slope])
    equal(jax.jvp(op, (X,), (X,))[1], 3 * slope)
    equal(jax.jit(jax.grad(lambda x: negative(x, vjp=lambda x, y, ct: -x[0] * ct)))(X), -3)
    rows = np.arange(6, dtype=F).reshape(3, 2)
    equal(jax.jit(jax.vmap(lambda x: jp.numpy_function(np.sum, [x], F, output_shapes=())))(rows), rows.sum(1))
    equal(jax.vmap(jax.vmap(lambda x: negative(x, vmap_method="expand_dims")))(rows), -rows)
    in_order = lambda f, x: jp.numpy_function(f, [x], F, stateful=True, ordered=True)
    jax.jit(lambda x: jax.lax.scan(lambda c, x: (c, in_order(note, x)), 0, x)[1])(jnp.arange(4.0))
    jax.jit(lambda x: (in_order(note, x), in_order(note, x + 1)))(X)
    jax.effects_barrier()
    assert log == [0, 1, 2, 3, 3, 4]
    for func in (lambda x: jp.numpy_function(fails, [x], F), lambda x: in_order(fails, x)):
        with pytest.raises(KeyError, match="thing"), jp.reraise():
            wait(jax.jit(func)(X))
    equal(jax.jit(negative)(X), -3)


def tape(jp, is_there):
    asks = jax.grad(lambda x: jp.py_function(lambda x: x * float(x), [x], F))
    if is_there:
        equal(asks(X), 3)  # the other factor is a number
    else:
        refused("asks for the value", asks, X)
    scale = np.full(3, X)
    _, pull = jax.vjp(lambda x: jp.py_function(lambda x: x * scale, [x], F), jnp.ones(3))
    scale[:] = 7
    equal(pull(jnp.ones(3))[0], [3, 3, 3])
    rules = lambda x: jp.py_function(lambda x: jax.jit(lambda x: x * x)(x) + jax.nn.relu(x), [x], F)
    equal([jax.grad(rules)(X), jax.jit(jax.grad(rules))(-X)], [7, -6])


def traced_mode(jp, is_there):
    branch = lambda mode: lambda x: jp.py_function(lambda x: x * x if x > 0 else x, [x], F, mode=mode)
    for mode in ("auto", "traced"):
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            equal(jax.jit(branch(mode))(X), 9)
        # Each op warns once.
        assert is_there or mode == "traced" or "calls the function, as mode='eager' does" in str(noted[0].message)
        assert not (is_there and noted)


def cut(jp, is_there):
    f = jp.jit(lambda x, n: jnp.sin(jp.py_function(lambda x: 2 * x, [x * n], F)), static_argnums=1)
    equal(f(X, 2), np.sin(12))
    equal(f(X, 2), np.sin(12))
    assert f.explain(X, 2).startswith("whole: programs cannot be cut: ") == (not is_there)
    whole = jp.jit(lambda x: jp.numpy_function(np.negative, [x], F))
    equal([whole(X), whole(X), whole(X)], [-3, -3, -3])
    if not is_there:
        refused("a program cannot be cut at its Python calls", jp.load, b"")


def loops(jp, is_there):
    log = []
    note = lambda x: jp.numpy_function(lambda x: log.append(1) or x, [x], F, stateful=True)
    for inner in (note, jax.jit(note), lambda x: jax.lax.cond(x > 0, note, note, x)):
        log.clear()
        turn = lambda c, _, inner=inner: (c * 2 + 0 * inner(jnp.float32(1)), None)
        twice = jax.grad(lambda x, turn=turn: jax.lax.scan(turn, x, None, length=2)[0])
        if is_there:
            equal(jax.jit(twice)(X), 4)
            jax.effects_barrier()
            assert len(log) == 2
        else:
            refused("the derivative of a loop cannot hold the stateful numpy_function", twice, X)


def vmap_of_cond(jp, is_there):
    once = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    cond = jax.jit(jax.vmap(lambda p, x: jax.lax.cond(p, once, lambda x: x, x), in_axes=(None, 0)))
    if is_there:
        equal(cond(True, jnp.ones(2)), [-1, -1])
    else:
        refused("vmap", cond, True, jnp.ones(2))
    refused("vmap", jax.vmap(lambda p, x: jax.lax.cond(p, once, lambda x: x, x)), np.array([True, False]), jnp.ones(2))


FEATURES = {
    "the tape": tape,
    "traced mode": traced_mode,
    "jaxpyop.jit": cut,
    "loops": loops,
    "vmap of cond": vmap_of_cond,
}


def works_in_part(jp):
    """Everything that does not need a feature that is missing, and what is refused without it."""
    works(jp)
    for feature, check in FEATURES.items():
        check(jp, jp._jaxcore.has(feature))
    jitted = jax.jit(lambda x: jp.numpy_function(np.negative, [x], F))
    reduced = lambda x: jax.lax.reduce(x, F(0), lambda a, b: jitted(b), (0,))
    refused("XLA operation, which cannot call Python", reduced, jnp.ones(3))
    once = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    refused("numpy_function", lambda: jax.jvp(lambda x: once(x) * 2, (X,), (X,))[1] + 1)
    random = lambda x: jp.py_function(lambda x: x * float(np.random.random()), [x], F)
    if jp._jaxcore.has("the tape"):
        value, slope = jax.value_and_grad(jax.checkpoint(random))(X)
        equal(value, slope * X)


class _Lacking(types.ModuleType):
    """A module without some names. Its own name is of no module, so that Python does not look there."""

    def __init__(self, module, names):
        super().__init__("a module that lacks names")
        self.__dict__.update(_module=module, _names=names)

    def __getattr__(self, name):
        if name in self.__dict__["_names"]:
            raise AttributeError(name)
        return getattr(self.__dict__["_module"], name)


def import_without(absent):
    for name in [name for name in sys.modules if name.partition(".")[0] == "jaxpyop"]:
        del sys.modules[name]
    names = collections.defaultdict(set)
    for home, _, attribute in (name.rpartition(".") for name in absent):
        names[home].add(attribute)
    with contextlib.ExitStack() as patches:
        for home, attributes in names.items():
            parent, _, last = home.rpartition(".")
            outer = importlib.import_module(parent)
            lacking = _Lacking(getattr(outer, last), attributes)
            patches.enter_context(mock.patch.dict(sys.modules, {home: lacking}))
            patches.enter_context(mock.patch.object(outer, last, lacking))
        return importlib.import_module("jaxpyop")


# Which features were lacking in an import before.
_seen: list[list[str]] = []
OF_OBJECTS = re.compile(r"jax\.jit\(\)|\.[A-Z]\w+\.")


def answer(absent):
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            # An attribute of JAX's objects cannot be taken away from JAX itself, which needs most of them.
            jp = import_without([name for name in absent if not OF_OBJECTS.search(name)])
        except ImportError as error:
            return {"error": str(error)}
    core = jp._jaxcore
    for name, path in core.NAMES.items():
        if path in absent:
            setattr(core.private, name, None)
    lacks = [feature for feature in core.FEATURES if core.why_without(feature)]
    failed = ""
    try:
        with warnings.catch_warnings(action="error"):
            # Names that take the same features away differ in what needs none of these.
            (works if lacks in _seen else works_in_part)(jp)
    except BaseException:
        failed = traceback.format_exc()[-3000:]
    _seen.append(lacks)
    return {"warnings": [str(w.message) for w in noted], "lacks": lacks, "failed": failed}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(answer(name.split(","))), flush=True)
