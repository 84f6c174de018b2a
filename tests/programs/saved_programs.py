"""Programs that one process saves and another one loads.

All functions that they call are defined by this module.
"""

import dataclasses
import json
import pathlib
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


def vjp_of_cube(inputs, outputs, cotangents):
    return (3 * inputs[0] ** 2 * cotangents[0],)


def fwd_of_cube(x):
    return x**3, 3 * x**2


def bwd_of_cube(slope, cotangents):
    return (slope * cotangents[0],)


def note(x):
    NOTES.append(np.asarray(x).tolist())


def noted(x):
    return note(x) or x + 1


def is_small(x):
    return note(x) or x < 2


def positive(x):
    return x[x > 0]


def parts(tree, scale, *, kind):
    assert kind == {"how": ("mean", None, "x")}
    return {"total": tree["a"] + tree["b"][0] * scale, "none": None, "size": (np.int32(3),)}


def fails_on_negative(x):
    if x < 0:
        raise ValueError("negative")
    return np.sqrt(x)


def uniform(key):
    return jax.random.uniform(key, (3,))


def split(key):
    return jax.random.split(key)[0]


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


def rule(x):
    op = lambda x: numpy_function(cube, [x], jax.ShapeDtypeStruct(x.shape, F), vjp=(fwd_of_cube, bwd_of_cube))
    return jnp.sum(jnp.sin(op(x)) * x)


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


def padded(x):
    found = numpy_function(positive, [x], jaxpyop.padded(F, 3, fill_value=-1.0))
    return found, found.values[0] + found.lengths


def when(x):
    return jax.vmap(lambda a: py_function(branches, [a], F, when=a > 0, output_shapes=()))(x)


def on_error(x):
    return jax.vmap(lambda a: numpy_function(fails_on_negative, [a], F, output_shapes=(), on_error="nan"))(x)


def keys(key):
    new = py_function(split, [key], jax.eval_shape(lambda: jax.random.key(0)))
    return py_function(uniform, [key], F), new, jax.random.normal(new, (2,))


def constant(x):
    # Literals and constants reach the function as they are, even if several calls read the same one.
    first, second = np.arange(3, dtype=np.float32), jnp.asarray([7.0, 8.0, 9.0])
    add = lambda *args: numpy_function(plus_pi, args, jax.ShapeDtypeStruct((3,), F))
    return [add(add(x, 3.0), 4.0), add(add(add(x, first), first), second), add(second, second), add(x, 3.0)]


def stopped(x):
    return jnp.sum(numpy_function(cube, [jax.lax.stop_gradient(x * 2)], jax.ShapeDtypeStruct((3,), F)) * x)


def gradient_cut(f):
    return jaxpyop.jit(jax.grad(f))


GRAD = {"after": jax.grad, "options": {"vjp_order": 1}}
PROGRAMS: dict[str, Program] = {
    "only a call": Program(lambda x: py_function(branches, [x], F)),
    "a decorated function": Program(lambda x: decorated(x) + 1),
    "value and gradient": Program(jax.value_and_grad(loss)),
    "hessian": Program(jax.hessian(loss)),
    "fwd and bwd in vmap": Program(jax.vmap(jax.grad(rule)), (ROWS,)),
    "gradient of a loaded program": Program(loss, **GRAD),
    "gradient of a loaded rule": Program(rule, **GRAD),
    "cut gradient of a loaded program": Program(loss, after=gradient_cut, options={"vjp_order": 1}),
    "gradient that stops before a call": Program(stopped, **GRAD),
    "effects": Program(with_effects),
    "vmap of a gradient": Program(jax.vmap(jax.grad(loss)), (ROWS,)),
    "structures": Program(tree, (X, {"y": X + 1})),
    "padded": Program(padded),
    "gradient with when": Program(jax.grad(lambda x: jnp.sum(when(x)))),
    "on_error": Program(on_error),
    "keys": Program(keys, (jax.random.key(7),)),
    "constants": Program(constant),
    "scan": Program(in_scan),
    "loops": Program(in_loops),
    "loops run from Python": Program(in_loops, options={"loops": "python"}),
    "vmap of a while": Program(jax.vmap(in_while), (ROWS,)),
    "a checkpoint": Program(jax.grad(jax.checkpoint(loss))),
}


def arguments(program: Program) -> tuple[Any, ...]:
    """The arguments with which a program is exported and run."""
    return jax.tree.map(jnp.asarray, program.args)


def outcome(fun: Callable[..., Any], program: Program) -> dict[str, Any]:
    """What a run of a program gives, as data."""
    NOTES.clear()
    with warnings.catch_warnings():
        # An op with on_error= says once that it filled a result.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = fun(*arguments(program))
        jax.effects_barrier()
    leaves, structure = jax.tree.flatten(found)
    plain = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in leaves]
    values = [np.asarray(x, np.float64).tolist() for x in plain]
    kinds = [f"{x.dtype}{x.shape}" for x in leaves]
    return {"types": kinds, "structure": str(structure), "values": values, "notes": list(NOTES)}


def save_all(folder: str, names: Collection[str] = PROGRAMS.keys()) -> None:
    """Save programs, each in a file."""
    for name in names:
        program = jaxpyop.export(PROGRAMS[name].fun, **PROGRAMS[name].options)(*arguments(PROGRAMS[name]))
        program.save(pathlib.Path(folder) / f"{name}.jaxpyop")


def load_all(folder: str) -> str:
    """Load and run the programs in a folder. An error is a text in the place of an outcome. All of it is JSON."""
    found: dict[str, Any] = {}
    for path in pathlib.Path(folder).glob("*.jaxpyop"):
        name, program = path.stem, PROGRAMS[path.stem]
        try:
            loaded = jaxpyop.load(path, allow=["tests.programs.saved_programs"])
            found[name] = outcome(program.after(loaded), program)
        except Exception as error:  # The test shows it.
            found[name] = f"{type(error).__name__}: {error}"
    return json.dumps(found)
