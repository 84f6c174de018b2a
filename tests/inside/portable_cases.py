"""What has to work whatever a JAX lacks: small programs, and a process that runs them on such a JAX.

`python -m tests.inside.portable_cases` reads lines of JSON: {"absent": a dotted name of JAX}, {"portable": true} or
{"renamed": true}, and perhaps "cases". For each it imports jaxpyop anew, runs the cases, and prints a line:
{"error": ...} if the import fails, else {"warnings": [...], "portable": ..., "failed": {case: why}}. One process serves
many lines, because a start takes a second.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
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
from jax.experimental import io_callback

F = jnp.float32
X = np.float32(3)

# What is lost on public JAX alone.
LOST = {
    "gradient_with_a_mutable_array_is_refused",
    "gradient_with_values",
    "traced",
    "traced_custom_rule",
    "scan_keeps_effect",
    "cond_with_effect",
    "cond_refusal_says_what_to_write",
    "unused_tangent",
    "combiner",
    "combiner_with_jit",
    "loop_keeps_calls",
    "cut",
}
# The cases that run without each single name: values, a shape, gradients, vmap, ordered effects and errors.
QUICK = ("calls", "inferred_shape", "gradients", "gradient_rules", "vmap", "effects", "errors")
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def equal(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5)


def refused(text, function, *args):
    with pytest.raises(Exception, match=re.escape(text)):
        jax.block_until_ready(function(*args))


def wait(x):
    jax.block_until_ready(x)
    jax.effects_barrier()


@case
def calls(jp):
    op = lambda x: jp.numpy_function(np.negative, [x], F)
    equal(op(X), -3)
    equal(jax.jit(lambda x: op(x) + 1)(X), -2)
    equal(jp.py_function(lambda x, y: x * y, [X, X], F), 9)
    equal(jax.jit(lambda x: jp.py_func(lambda x: np.stack([x, x]), [x], F, output_shapes=(2,)))(X), [3, 3])


@case
def inferred_shape(jp):
    op = lambda x: jp.py_function(lambda x: jnp.stack([x, 2 * x]), [x], F)
    assert jax.eval_shape(op, X).shape == (2,)
    equal(jax.jit(op)(X), [3, 6])


@case
def gradients(jp):
    op = lambda x: jp.py_function(lambda x: jnp.sin(x) * x, [x], F)
    slope = np.cos(3) * 3 + np.sin(3)
    equal(jax.grad(op)(X), slope)
    equal(jax.jit(jax.grad(op))(X), slope)
    equal(jax.jit(jax.vmap(jax.grad(op)))(np.full(2, X)), [slope, slope])
    equal(jax.jvp(op, (X,), (X,))[1], 3 * slope)


@case
def second_gradient(jp):
    op = lambda x: jp.py_function(lambda x: x**3, [x], F)
    equal(jax.grad(jax.grad(op))(X), 18)


@case
def gradient_with_a_numpy_array_that_changes_later(jp):
    scale = np.full(3, X)
    y, pull = jax.vjp(lambda x: jp.py_function(lambda x: x * scale, [x], F), jnp.ones(3))
    scale[:] = 7
    equal(y, [3, 3, 3])
    equal(pull(jnp.ones(3))[0], [3, 3, 3])


@case
def gradient_through_jit_and_custom_jvp(jp):
    op = lambda x: jp.py_function(lambda x: jax.jit(lambda x: x * x)(x) + jax.nn.relu(x), [x], F)
    equal(jax.grad(op)(X), 7)
    equal(jax.jit(jax.grad(op))(-X), -6)


@case
def gradient_with_a_mutable_array_is_refused(jp):
    def body(x):
        kept = jax.new_ref(jnp.zeros(()))
        kept[...] = x * x
        return kept[...] * x

    refused("mutable array", jax.grad(lambda x: jp.py_function(body, [x], F, output_shapes=())), X)


@case
def gradient_rules(jp):
    op = lambda x: jp.numpy_function(np.square, [x], F, vjp=lambda x, y, ct: 2 * x[0] * ct[0])
    equal(jax.grad(op)(X), 6)
    equal(jax.jit(jax.grad(op))(X), 6)


@case
def gradient_with_values(jp):
    op = lambda x: jp.py_function(lambda x: x * x if float(x) > 0 else x, [x], F)
    equal(jax.grad(op)(X), 6)
    equal(jax.jit(jax.grad(op))(-X), 1)


@case
def traced(jp):
    op = lambda x: jp.py_function(lambda x: x * x if x > 0 else x, [x], F, mode="traced")
    equal(jax.jit(op)(X), 9)
    equal(jax.jit(jax.grad(op))(-X), 1)


@case
def traced_custom_rule(jp):
    inner = jax.custom_jvp(lambda x: x * x if x > 0 else x)
    inner.defjvp(lambda primals, tangents: (inner(*primals), 2 * primals[0] * tangents[0]))
    equal(jax.jit(lambda x: jp.py_function(inner, [x], F, mode="traced"))(X), 9)


@case
def auto(jp):
    op = lambda x: jp.py_function(lambda x: x * x if x > 0 else x, [x], F, mode="auto")
    equal(jax.jit(op)(X), 9)


@case
def vmap(jp):
    op = lambda x, **how: jp.numpy_function(np.sum, [x], F, output_shapes=(), **how)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    equal(jax.vmap(op)(rows), rows.sum(1))
    equal(jax.jit(jax.vmap(op))(rows), rows.sum(1))
    block = lambda x: jp.numpy_function(np.negative, [x], F, vmap_method="expand_dims")
    equal(jax.vmap(jax.vmap(block))(rows), -rows)
    named = lambda x: jp.numpy_function(np.negative, [x], F) + jax.lax.axis_index("i")
    equal(jax.vmap(named, axis_name="i")(rows[:, 0]), [0, -1, -2])


@case
def effects(jp):
    log = []

    def note(x):
        log.append(float(x))
        return x

    one = lambda x: jp.numpy_function(note, [x], F, stateful=True)
    equal(one(X), 3)
    equal(jax.jit(one)(X), 3)
    assert log == [3, 3]
    in_order = lambda x: jp.numpy_function(note, [x], F, stateful=True, ordered=True)
    jax.block_until_ready(jax.jit(lambda x: jax.lax.scan(lambda c, x: (c, in_order(x)), 0, x)[1])(jnp.arange(4.0)))
    jax.effects_barrier()
    assert log[2:] == [0, 1, 2, 3]
    both = lambda x: (in_order(x), in_order(x + 1))
    jax.block_until_ready(jax.jit(both)(X))
    jax.effects_barrier()
    assert log[6:] == [3, 4]


@case
def scan_keeps_effect(jp):
    log = []

    def turn(c, x):
        jp.numpy_function(log.append, [x], [], stateful=True)
        return c * x, None

    jax.block_until_ready(jax.jit(jax.grad(lambda x: jax.lax.scan(turn, x, jnp.arange(1.0, 4.0))[0]))(X))
    jax.effects_barrier()
    assert len(log) == 3


def _cond(jp, predicate_axis):
    op = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    return jax.vmap(lambda p, x: jax.lax.cond(p, op, lambda x: x, x), (predicate_axis, 0))


@case
def cond_with_effect(jp):
    equal(jax.jit(_cond(jp, None))(True, jnp.arange(2.0)), [0, -1])


@case
def cond_is_refused(jp):
    refused("vmap", jax.jit(_cond(jp, 0)), np.array([True, False]), jnp.arange(2.0))


@case
def cond_with_io_callback_is_refused(jp):
    def both(x):
        io_callback(lambda: None, None)
        return jp.numpy_function(np.negative, [x], F, stateful=True)

    program = jax.vmap(lambda p, x: jax.lax.cond(p, both, lambda x: x, x), (None, 0))
    refused("effect not supported in vmap", jax.jit(program), True, jnp.arange(2.0))


@case
def cond_refusal_says_what_to_write(jp):
    refused("with the predicate as when=", jax.jit(_cond(jp, 0)), np.array([True, False]), jnp.arange(2.0))
    op = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    loop = lambda x: jax.lax.while_loop(lambda x: x > 0, lambda x: op(x), x)
    refused("loop to the longest length with fori_loop", jax.jit(jax.vmap(loop)), jnp.arange(2.0))


@case
def errors(jp):
    def fails(x):
        raise KeyError("no such thing")

    op = lambda x: jp.numpy_function(fails, [x], F)
    refused("no such thing", op, X)
    refused("no such thing", jax.jit(op), X)
    with pytest.raises(KeyError, match="thing"), jp.reraise():
        jax.block_until_ready(jax.jit(op)(X))
    in_order = lambda x: jp.numpy_function(fails, [x], F, stateful=True, ordered=True)
    with pytest.raises(KeyError, match="thing"), jp.reraise():
        wait(jax.jit(in_order)(X))
    equal(jax.jit(lambda x: jp.numpy_function(np.negative, [x], F))(X), -3)


@case
def tangent_is_refused(jp):
    op = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    refused("numpy_function", lambda: jax.jvp(lambda x: op(x) * 2, (X,), (X,))[1] + 1)


@case
def unused_tangent(jp):
    op = lambda x: jp.numpy_function(np.negative, [x], F, stateful=True)
    primal, tangent = jax.jvp(lambda x: x * jax.jit(lambda y: y > 0)(op(x)), (X,), (X,))
    equal((primal, tangent), (0, 0))


def _reduce(function):
    return jax.jit(lambda x: jax.lax.reduce(x, np.float32(0), function, (0,)))


@case
def combiner(jp):
    op = lambda a, b: jp.numpy_function(np.add, [a, b], F)
    refused("is part of one XLA operation", _reduce(op), jnp.ones(2))


@case
def combiner_with_jit(jp):
    op = jax.jit(lambda a, b: jp.numpy_function(np.add, [a, b], F))
    refused("is part of one XLA operation", _reduce(op), jnp.ones(2))
    refused("is part of one XLA operation", jax.jit(lambda x: op(x[0], x[1]) + _reduce(op)(x)), jnp.ones(2))


@case
def loop_keeps_calls(jp):
    log = []

    def note(x=X):
        log.append(x)
        return np.float32(len(log))

    def turn(c, x):
        both = jp.numpy_function(note, [], F, stateful=True) + jp.numpy_function(note, [X], F, stateful=True)
        return c + jax.lax.stop_gradient(both) * x, None

    value, slope = jax.value_and_grad(lambda x: jax.lax.scan(lambda c, _: turn(c, x), 0.0, None, length=3)[0])(X)
    equal((value, slope), (3 * 21, 21))


@case
def whole(jp):
    program = jp.jit(lambda x, n: jnp.sin(jp.numpy_function(np.negative, [x * n], F)), static_argnums=1)
    equal(program(X, 2), np.sin(-6))
    equal(jax.grad(jp.jit(lambda x: jp.py_function(lambda x: x * x, [x], F)))(X), 6)


@case
def cut(jp):
    program = jp.jit(lambda x, n: jnp.sin(jp.numpy_function(np.negative, [x * n], F)), static_argnums=1)
    for _ in range(2):
        equal(program(X, n=2), np.sin(-6))
    loop = jp.jit(
        lambda x: jax.lax.scan(lambda c, _: (jp.numpy_function(np.negative, [c], F), c), x, None, 3)[1], loops="python"
    )
    equal(loop(X), [3, -3, 3])


# ------------------------------------------------------------------- the process


class _Lacking(types.ModuleType):
    """A module without one name. Its own name is of no module, so that Python does not look there."""

    def __init__(self, module, name):
        super().__init__("a module that lacks a name")
        self.__dict__.update(_module=module, _name=name)

    def __getattr__(self, name):
        if name == self.__dict__["_name"]:
            raise AttributeError(f"no {name} here")
        return getattr(self.__dict__["_module"], name)


def _import_without(absent):
    for name in [name for name in sys.modules if name.partition(".")[0] == "jaxpyop"]:
        del sys.modules[name]
    with contextlib.ExitStack() as stack:
        if absent:
            home, _, attribute = absent.rpartition(".")
            parent, _, last = home.rpartition(".")
            lacking = _Lacking(getattr(importlib.import_module(parent), last), attribute)
            stack.enter_context(mock.patch.dict(sys.modules, {home: lacking}))
            stack.enter_context(mock.patch.object(importlib.import_module(parent), last, lacking))
        return importlib.import_module("jaxpyop")


def _rename_what_jax_defines():
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "jax"]
    found = [value for module in modules for value in list(vars(module).values())]
    classes = [cls for cls in found if inspect.isclass(cls) and cls.__module__.startswith("jax.")]
    for cls in classes:
        with contextlib.suppress(TypeError):
            cls.__name__ = cls.__qualname__ = "Renamed"
    found += [value for cls in classes for value in list(vars(cls).values())]
    for function in map(inspect.unwrap, filter(inspect.isfunction, found)):
        if function.__module__.startswith("jax."):
            function.__code__ = function.__code__.replace(co_name="renamed", co_qualname="renamed")
            function.__name__ = function.__qualname__ = "renamed"


def _answer(request):
    os.environ["JAXPYOP_PORTABLE"] = "1" if request.get("portable") else ""
    if request.get("renamed"):
        _rename_what_jax_defines()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            jp = _import_without(request.get("absent"))
        except ImportError as error:
            return {"error": str(error)}
    failed = {}
    for name in request.get("cases", CASES):
        if jp._jaxcore.PORTABLE and name in LOST:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                CASES[name](jp)
        except BaseException:
            failed[name] = traceback.format_exc()[-3000:]
    return {"warnings": [str(w.message) for w in noted], "portable": jp._jaxcore.PORTABLE, "failed": failed}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)
