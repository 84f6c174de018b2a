"""Programs that one process saves and another one loads.

All functions that they call are defined by this module.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import warnings
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop import numpy_function, py_function

F = jnp.float32
X = np.array([0.5, -1.25, 2.0], np.float32)
ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)

# What functions with effects noted.
NOTES: list[Any] = []


@dataclasses.dataclass(frozen=True)
class Program:
    """A program to save.

    Attributes:
        fun: the function.
        args: its arguments.
        after: what is done with the loaded function, such as `jax.grad`.
        options: those of `jaxpyop.export`.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...] = (X,)
    after: Callable[..., Any] = lambda f: f
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


# ------------------------------------------------------------- Python functions


def branches(x):
    return x * 2 if float(jnp.sum(x)) > 0 else -x * x


def cube(x):
    return x**3


def vjp_of_cube(inputs, outputs, cotangents):
    return (3 * inputs[0] ** 2 * cotangents[0],)


def jvp_of_cube(inputs, outputs, tangents):
    return (3 * inputs[0] ** 2 * tangents[0],)


@py_function(Tout=F)
def vjp_of_jax(inputs, outputs, cotangents):
    return 3 * inputs[0] ** 2 * cotangents[0]


def fwd_of_cube(x):
    return x**3, 3 * x**2


def bwd_of_cube(slope, cotangents):
    return (slope * cotangents[0],)


def note(x):
    NOTES.append(np.asarray(x).tolist())


def noted(x):
    note(x)
    return x + 1


def is_small(x):
    note(x)
    return x < 2


def middle(x):
    return np.median(x)


def positive(x):
    return x[x > 0]


def parts(tree, scale, *, kind):
    assert kind == {"how": ("mean", None, "x")}
    return {"total": tree["a"] + tree["b"][0] * scale, "none": None, "size": (np.int32(3),)}


def fails_on_negative(x):
    if x < 0:
        raise ValueError("negative")
    return np.sqrt(x)


def halves(inputs, outputs, cotangents):
    return (cotangents[0] / 2,)


def ones(x):
    return np.ones(x.shape, np.int32)


def uniform(key):
    return jax.random.uniform(key, (3,))


def split(key):
    return jax.random.split(key)[0]


def twice(x):
    return 2 * x


def transpose_of_twice(cotangents):
    return (2 * cotangents[0],)


def fill(x, *, out):
    out[...] = x[::-1]


def shape_of(x):
    return x.shape


def plus_pi(x, number):
    return x + number


@jaxpyop.numpy_function(Tout=jax.ShapeDtypeStruct((3,), F), vjp=vjp_of_cube)
def decorated(x):
    return x**3


# --------------------------------------------------------------------- programs


def of_branches(x):
    return jnp.sin(py_function(branches, [jnp.cos(x)], F)) + x


def loss(x):
    return jnp.sum(of_branches(x) ** 2)


def rule(**options):
    return lambda x: jnp.sum(jnp.sin(numpy_function(cube, [x], jax.ShapeDtypeStruct(x.shape, F), **options)) * x)


def curvature(**rules):
    """A function that differentiates a rule. JAX rounds nothing in it, because differences magnify what is rounded."""
    total = lambda x: jnp.sum(numpy_function(cube, [x], jax.ShapeDtypeStruct(x.shape, F), **rules))
    return jax.grad(lambda x: jnp.sum(jax.grad(total)(x) * 2))


def with_effects(x):
    numpy_function(note, [x * 2], None, ordered=True)
    y = numpy_function(noted, [x + 1], jax.ShapeDtypeStruct((3,), F), stateful=True)
    numpy_function(note, [y[:1]], None, ordered=True)
    return y * 2


def in_scan(x):
    def turn(total, row):
        total = total + numpy_function(cube, [row], jax.ShapeDtypeStruct((), F), vjp=vjp_of_cube)
        return total, py_function(branches, [total], F)

    return jax.lax.scan(turn, jnp.float32(0), x, reverse=True)


def in_while(x):
    def turn(state):
        count, x = state
        return count + 1, py_function(branches, [x * 0.9], F, output_shapes=(3,))

    return jax.lax.while_loop(lambda state: (state[0] < 4) & (jnp.sum(state[1]) < 30), turn, (0, x))


def in_test(x):
    """A loop whose test has an effect, which happens once in a turn."""
    small = lambda x: numpy_function(is_small, [x], jax.ShapeDtypeStruct((), jnp.bool_), ordered=True)
    return jax.lax.while_loop(small, lambda x: x + 1, x[0])


def in_cond(x):
    return jax.lax.cond(x[0] > 0, lambda x: py_function(branches, [x], F), lambda x: x - 1, x)


def tree(x, more):
    tout = {"total": jax.ShapeDtypeStruct((3,), F), "none": None, "size": (jnp.int32(0),)}
    given = {"a": x, "b": [more["y"]]}
    op = numpy_function(Tout=tout)(parts)
    return op(given, 2.0, kind={"how": ("mean", None, "x")})


def padded(x):
    found = numpy_function(positive, [x], jaxpyop.padded(F, 3, fill_value=-1.0))
    return found, found.values[0] + found.lengths


def when(x):
    one = lambda a: py_function(branches, [a], F, when=a > 0, output_shapes=())
    return jax.vmap(one)(x)


def on_error(x):
    one = lambda a: numpy_function(fails_on_negative, [a], jax.ShapeDtypeStruct((), F), on_error="nan", vjp=halves)
    return jax.vmap(one)(x)


def keys(key):
    new = py_function(split, [key], jax.eval_shape(lambda: jax.random.key(0)))
    return py_function(uniform, [key], F), new, jax.random.normal(new, (2,))


def constant(x):
    # Literals and constants reach the function as they are, even if several calls read the same one.
    first, second = np.arange(3, dtype=np.float32), jnp.asarray([7.0, 8.0, 9.0])
    add = lambda *args: numpy_function(plus_pi, args, jax.ShapeDtypeStruct((3,), F))
    return [add(add(x, 3.0), 4.0), add(add(add(x, first), first), second), add(second, second), add(x, 3.0)]


def linear(x):
    return jnp.sum(numpy_function(twice, [x], jax.ShapeDtypeStruct(x.shape, F), transpose=transpose_of_twice) ** 2)


def filled(x):
    return numpy_function(fill, [x], jax.ShapeDtypeStruct((3,), F), out=True) * 2


def blocks(x):
    one = lambda row: numpy_function(cube, [row], F, output_shapes=shape_of, vmap_method="broadcast_all")
    return jax.vmap(one)(x)


def nested_batch(x, y):
    one = lambda a, b: py_function(plus_pi, [a, b], F)
    return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(x, y)


def unused_infinity(x):
    """A gradient in which zero times infinity does not occur, because the square root has no derivative there."""
    root, counted = jnp.sqrt(x * 0), numpy_function(ones, [jnp.sqrt(x * 0)], jax.ShapeDtypeStruct((3,), jnp.int32))
    kept = jax.lax.stop_gradient(py_function(cube, [root], F)) * counted
    return jnp.sum(py_function(cube, [jnp.sin(x)], F) * jnp.cos(x) + kept)


def stopped_before_a_call(x):
    """A NumPy function without a rule, whose input has no derivative."""
    return jnp.sum(numpy_function(cube, [jax.lax.stop_gradient(x * 2)], jax.ShapeDtypeStruct((3,), F)) * x)


def bfloat(x):
    return py_function(cube, [x.astype(jnp.bfloat16)], jnp.bfloat16) * 2


GRAD = {"after": jax.grad, "options": {"vjp_order": 1}}
PROGRAMS: dict[str, Program] = {
    "a branch on a value": Program(of_branches),
    "only a call": Program(lambda x: py_function(branches, [x], F)),
    "a decorated function": Program(lambda x: decorated(x) + 1),
    "gradient": Program(jax.grad(loss)),
    "value and gradient": Program(jax.value_and_grad(loss)),
    "jvp": Program(lambda x: jax.jvp(loss, (x,), (x,))),
    "hessian": Program(jax.hessian(loss)),
    "vjp=": Program(jax.grad(rule(vjp=vjp_of_cube))),
    "vjp= and jvp=": Program(lambda x: jax.jvp(rule(vjp=vjp_of_cube, jvp=jvp_of_cube), (x,), (x,))),
    "fwd and bwd": Program(jax.grad(rule(vjp=(fwd_of_cube, bwd_of_cube)))),
    "fwd and bwd in vmap": Program(jax.vmap(jax.grad(rule(vjp=(fwd_of_cube, bwd_of_cube)))), (ROWS,)),
    "a rule that is an op": Program(curvature(vjp=vjp_of_jax)),
    "vjp numerical": Program(jax.grad(rule(vjp="numerical"))),
    "transpose=": Program(jax.grad(linear)),
    "gradient of a loaded program": Program(loss, **GRAD),
    "gradient of a loaded rule": Program(rule(vjp=vjp_of_cube), **GRAD),
    "gradient of a loaded pair": Program(rule(vjp=(fwd_of_cube, bwd_of_cube)), **GRAD),
    "gradient of a loaded linear function": Program(linear, **GRAD),
    "cut gradient of a loaded program": Program(
        loss, after=lambda f: jaxpyop.jit(jax.grad(f)), options={"vjp_order": 1}
    ),
    "gradient beside an unused infinity": Program(unused_infinity, **GRAD),
    "gradient that stops before a call": Program(stopped_before_a_call, **GRAD),
    "effects": Program(with_effects),
    "vmap": Program(jax.vmap(of_branches), (ROWS,)),
    "vmap of a gradient": Program(jax.vmap(jax.grad(loss)), (ROWS,)),
    "blocks": Program(blocks, (ROWS,)),
    "nested batches": Program(nested_batch, (X, X[:2])),
    "structures": Program(tree, (X, {"y": X + 1})),
    "padded": Program(padded),
    "when": Program(when),
    "gradient with when": Program(jax.grad(lambda x: jnp.sum(when(x)))),
    "on_error": Program(on_error),
    "gradient with on_error": Program(jax.grad(lambda x: jnp.sum(on_error(x) ** 2))),
    "keys": Program(keys, (jax.random.key(7),)),
    "constants": Program(constant),
    "out": Program(filled),
    "bfloat16": Program(bfloat),
    "scan": Program(in_scan),
    "scan run from Python": Program(in_scan, options={"loops": "python"}),
    "gradient of a scan": Program(jax.grad(lambda x: in_scan(x)[0] ** 2), options={"loops": "python"}),
    "while": Program(in_while),
    "while run from Python": Program(in_while, options={"loops": "python"}),
    "an effect in the test of a while": Program(in_test),
    "an effect in the test of a while run from Python": Program(in_test, options={"loops": "python"}),
    "vmap of a while": Program(jax.vmap(in_while), (ROWS,)),
    "cond": Program(in_cond),
    "cond run from Python": Program(in_cond, options={"loops": "python"}),
    "inside jit": Program(of_branches, after=jax.jit),
    "inside a scan": Program(of_branches, after=lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), c), x, None, 2)),
    "a checkpoint": Program(jax.grad(jax.checkpoint(loss))),
    "keywords": Program(lambda x, *, scale: of_branches(x) * scale),
}


def arguments(program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which a program is exported and run."""
    keywords = {"scale": jnp.float32(2)} if program is PROGRAMS["keywords"] else {}
    return tuple(x if isinstance(x, dict) else jnp.asarray(x) for x in program.args), keywords


def outcome(fun: Callable[..., Any], program: Program) -> dict[str, Any]:
    """What a run of a program gives, as data."""
    NOTES.clear()
    args, kwargs = arguments(program)
    with warnings.catch_warnings():
        # An op with on_error= says once that it filled a result.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = fun(*args, **kwargs)
        jax.effects_barrier()
    leaves, structure = jax.tree.flatten(found)
    plain = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in leaves]
    return {
        "types": [f"{x.dtype}{x.shape}" for x in leaves],
        "structure": str(structure),
        "values": [np.asarray(x, np.float64).tolist() for x in plain],
        "notes": list(NOTES),
    }


def save_all(folder: str, names: Collection[str] = PROGRAMS.keys()) -> None:
    """Save programs, each in a file."""
    for name in names:
        program = PROGRAMS[name]
        args, kwargs = arguments(program)
        jaxpyop.export(program.fun, **program.options)(*args, **kwargs).save(pathlib.Path(folder) / f"{name}.jaxpyop")


def load_all(folder: str) -> dict[str, Any]:
    """Load and run the programs in a folder. An error is a text in the place of an outcome."""
    found: dict[str, Any] = {}
    for path in pathlib.Path(folder).glob("*.jaxpyop"):
        name, program = path.stem, PROGRAMS[path.stem]
        try:
            loaded = jaxpyop.load(path, allow=["tests.programs.saved_programs"])
            found[name] = outcome(program.after(loaded), program)
        except Exception as error:  # The test shows it.
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    """Load the programs of a folder, and print what they give."""
    print(json.dumps(load_all(sys.argv[1])))
