"""What has to work whatever a JAX lacks, and a process that runs it on such a JAX.

`python -m tests.inside.portable_cases NAMES ...` imports jaxpyop anew without names of JAX, once for each argument: one
name, or several with commas. It runs `begins` there, or `works` where several are missing, and prints a line of JSON:
{"error": ...} if the import fails, else {"warnings": [...], "portable": ..., "failed": why}. One process serves many
arguments, because a start takes a second.
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


def begins(jp):
    """A call. What is missing is known by the import, and all else is then as it is without any of the names."""
    equal(jp.numpy_function(np.negative, [X], F), -3)


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


def works_on_public_jax(jp):
    """What needs code of its own there, and what is refused there."""
    scale = np.full(3, X)
    _, pull = jax.vjp(lambda x: jp.py_function(lambda x: x * scale, [x], F), jnp.ones(3))
    scale[:] = 7
    equal(pull(jnp.ones(3))[0], [3, 3, 3])
    rules = lambda x: jp.py_function(lambda x: jax.jit(lambda x: x * x)(x) + jax.nn.relu(x), [x], F)
    equal([jax.grad(rules)(X), jax.jit(jax.grad(rules))(-X)], [7, -6])
    named = lambda x: jp.numpy_function(np.negative, [x], F) + jax.lax.axis_index("i")
    equal(jax.vmap(named, axis_name="i")(np.arange(3, dtype=F)), [0, 0, 0])
    branch = lambda mode: lambda x: jp.py_function(lambda x: x * x if x > 0 else x, [x], F, mode=mode)
    equal(jax.jit(branch("auto"))(X), 9)
    refused("mode='traced' is not possible on public JAX alone", jax.jit(branch("traced")), X)
    refused("asks for the value", jax.grad(lambda x: jp.py_function(lambda x: x * float(x), [x], F)), X)
    whole = jp.jit(lambda x, n: jnp.sin(jp.numpy_function(np.negative, [x * n], F)), static_argnums=1)
    equal(whole(X, 2), np.sin(-6))
    once = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    cond = jax.vmap(lambda p, x: jax.lax.cond(p, once, lambda x: x, x))
    refused("vmap", jax.jit(cond), np.array([True, False]), jnp.arange(2.0))
    refused("numpy_function", lambda: jax.jvp(lambda x: once(x) * 2, (X,), (X,))[1] + 1)


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


def answer(absent):
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            jp = import_without(absent)
        except ImportError as error:
            return {"error": str(error)}
    failed = ""
    try:
        with warnings.catch_warnings(action="error"):
            (works if len(absent) > 1 else begins)(jp)
    except BaseException:
        failed = traceback.format_exc()[-3000:]
    return {"warnings": [str(w.message) for w in noted], "portable": jp._jaxcore.PORTABLE, "failed": failed}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(answer(name.split(","))), flush=True)
