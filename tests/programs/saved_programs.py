"""Programs that one process saves and another one loads: each feature of tests/routes/features.py, and more.

All functions that they call are defined by modules.
"""

# It is in the checksum of `branches`, which the file of format 1 has.
from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.programs import saved_classes
from tests.routes import features
from tests.routes.features import NOTES, bwd_of_cube, fwd_of_cube, note, note_alone, vjp_of_cube
from tests.shared import many_programs
from tests.shared.checks import trees_close

F = jnp.float32
X = np.array([0.5, -1.25, 2.0], np.float32)
ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@dataclasses.dataclass(frozen=True)
class Program:
    """A function, its arguments, what is done with the loaded function (`jax.grad`), and the options of `export`."""

    fun: Callable[..., Any]
    args: tuple[Any, ...] = (X,)
    after: Callable[..., Any] = lambda f: f
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


# ------------------------------------------------------------- Python functions


def branches(x):
    return x * 2 if float(jnp.sum(x)) > 0 else -x * x


def cube(x):
    return x**3


def is_small(x):
    return note_alone(x) or x < 2


def parts(tree, scale, *, kind):
    assert kind == {"how": ("mean", None, "x")}
    return {"total": tree["a"] + tree["b"][0] * scale, "none": None, "size": (np.int32(3),)}


def uniform(key):
    return jax.random.uniform(key, (3,))


def split(key):
    return jax.random.split(key)[0]


def plus_pi(x, number):
    return x + number


# --------------------------------------------------------------------- programs


def of_branches(x):
    return jnp.sin(py_function(branches, [jnp.cos(x)], F)) + x


def loss(x):
    return jnp.sum(of_branches(x) ** 2)


def rule(x):
    op = lambda x: numpy_function(cube, [x], jax.ShapeDtypeStruct(x.shape, F), vjp=(fwd_of_cube, bwd_of_cube))
    return jnp.sum(jnp.sin(op(x)) * x)


def with_effects(x):
    numpy_function(note_alone, [x * 2], None, ordered=True)
    y = numpy_function(note, [x + 1], jax.ShapeDtypeStruct((3,), F), stateful=True)
    numpy_function(note_alone, [y[:1]], None, ordered=True)
    return y * 2


def in_scan(x):
    def turn(total, row):
        total = total + numpy_function(cube, [row], jax.ShapeDtypeStruct((), F), vjp=vjp_of_cube)
        return total, py_function(branches, [total], F)

    return jax.lax.scan(turn, jnp.float32(0), x, reverse=True)


def in_while(x):
    turn = lambda state: (state[0] + 1, py_function(branches, [state[1] * 0.9], F, output_shapes=(3,)))
    return jax.lax.while_loop(lambda state: (state[0] < 4) & (jnp.sum(state[1]) < 30), turn, (0, x))


def in_loops(x):
    """Also one whose test has an effect, which happens once in a turn."""
    small = lambda x: numpy_function(is_small, [x], jax.ShapeDtypeStruct((), jnp.bool_), ordered=True)
    taken = jax.lax.cond(x[0] > 0, lambda x: py_function(branches, [x], F), lambda x: x - 1, x)
    return in_scan(x), in_while(x), jax.lax.while_loop(small, lambda x: x + 1, x[0]), taken


def tree(x, more):
    tout = {"total": jax.ShapeDtypeStruct((3,), F), "none": None, "size": (jnp.int32(0),)}
    return numpy_function(Tout=tout)(parts)({"a": x, "b": [more["y"]]}, 2.0, kind={"how": ("mean", None, "x")})


def when(x):
    return jax.vmap(lambda a: py_function(branches, [a], F, when=a > 0, output_shapes=()))(x)


def keys(key):
    new = py_function(split, [key], jax.eval_shape(lambda: jax.random.key(0)))
    return py_function(uniform, [key], F), new, jax.random.normal(new, (2,))


def constant(x):
    # Literals and constants reach the function as they are, even if several calls read the same one.
    first, second = np.arange(3, dtype=np.float32), jnp.asarray([7.0, 8.0, 9.0])
    add = lambda *args: numpy_function(plus_pi, args, jax.ShapeDtypeStruct((3,), F))
    return [add(add(x, 3.0), 4.0), add(add(add(x, first), first), second), add(second, second), add(x, 3.0)]


# Where the functions and classes of the programs are.
ALLOW = ["tests", "optax", "equinox"]
GRAD = {"after": jax.grad, "options": {"vjp_order": 1}}
PROGRAMS = {
    "value and gradient": Program(jax.value_and_grad(loss)),
    "fwd and bwd in vmap": Program(jax.vmap(jax.grad(rule)), (ROWS,)),
    "gradient of a loaded program": Program(loss, **GRAD),
    "gradient of a loaded rule": Program(rule, **GRAD),
    "effects": Program(with_effects),
    "structures": Program(tree, (X, {"y": X + 1})),
    "gradient with when": Program(jax.grad(lambda x: jnp.sum(when(x)))),
    "keys": Program(keys, (jax.random.key(7),)),
    "constants": Program(constant),
    "loops": Program(in_loops),
    "loops run from Python": Program(in_loops, options={"loops": "python"}),
}
PROGRAMS |= {name: Program(fun, saved_classes.ARGUMENTS[name]) for name, fun in saved_classes.STEPS.items()}
PROGRAMS |= {name: Program(f.program, (features.X,)) for name, f in features.FEATURES.items() if f.loads}


def arguments(program):
    """The arguments with which a program is exported and run."""
    return jax.tree.map(jnp.asarray, program.args)


def outcome(fun, program):
    """What a run of a program gives, and what its functions noted."""
    NOTES.clear()
    with warnings.catch_warnings():
        # An op with on_error= says once that it filled a result.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = fun(*arguments(program))
        jax.effects_barrier()
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, found), [*NOTES]


def save_all(folder):
    """Save all programs, each in a file."""
    for name, program in PROGRAMS.items():
        exported = jaxpyop.export(program.fun, **program.options)(*arguments(program))
        exported.save(pathlib.Path(folder) / name)


def is_as_before(folder, name):
    """Compare a program from a file with the function that it was made of."""
    program = PROGRAMS[name]
    loaded = jaxpyop.load(pathlib.Path(folder) / name, allow=ALLOW)
    found, expected = (outcome(program.after(fun), program) for fun in (loaded, jax.jit(program.fun)))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    kinds = lambda tree: [(x.dtype, x.shape) for x in jax.tree.leaves(tree)]
    assert kinds(found) == kinds(expected)
    trees_close(found, expected)


if __name__ == "__main__":
    many_programs.main({name: functools.partial(is_as_before, sys.argv[1], name) for name in PROGRAMS})
