"""Ops on a mesh with Explicit axes, inside `jax.set_mesh` and outside, in a process with eight devices.

JAX refuses a gradient outside of `jit` and of `jax.set_mesh`, with or without an op.
"""

from __future__ import annotations

import contextlib

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.shared import many_programs

F = jnp.float32


def branching(x):
    y = x * x
    for _ in range(3):
        y = jnp.sin(y) if float(jnp.sum(y)) > 0 else y
    return y * 3


def chosen(x):
    if jnp.sum(x) > 1:
        x = x * 2
    return x**2


def branching_in_jax(x):
    y = x * x
    for _ in range(3):
        y = jnp.where(jnp.sum(y) > 0, jnp.sin(y), y)
    return y * 3


def chosen_in_jax(x):
    return jnp.where(jnp.sum(x) > 1, x * 2, x) ** 2


def doubled(x):
    while x < 100.0:
        x = x * 2
    return x


def cube(x):
    return x**3


SLOPE = {"vjp": lambda i, o, c: 3 * i[0] ** 2 * c[0]}
PAIR = {"vjp": (lambda x: (x**3, 3 * x**2), lambda r, c: r * c[0])}
OPS = {
    "tape": (branching_in_jax, lambda x: jaxpyop.py_function(branching, [x], F)),
    "vjp": (cube, lambda x: jaxpyop.numpy_function(cube, [x], F, **SLOPE)),
    "fwd and bwd": (cube, lambda x: jaxpyop.numpy_function(cube, [x], F, **PAIR)),
    "numerical": (cube, lambda x: jaxpyop.numpy_function(cube, [x], F, vjp="numerical")),
    "transpose": (
        lambda x: x * x * 2,
        lambda x: x * jaxpyop.numpy_function(lambda x: x * 2, [x], F, transpose=lambda c: 2 * c[0]),
    ),
    "traced": (chosen_in_jax, lambda x: jaxpyop.py_function(chosen, [x], F, mode="traced")),
}
PROGRAMS = {
    "alone": lambda f, x: f(x),
    "vmap": lambda f, x: jax.vmap(f)(x),
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(f))(x),
    "vmap of grad again": lambda f, x: jax.vmap(jax.grad(f))(x),
    "grad of vmap": lambda f, x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x),
    "jit of vmap of grad": lambda f, x: jax.jit(jax.vmap(jax.grad(f)))(x),
    "jit of grad of vmap": lambda f, x: jax.jit(jax.grad(lambda x: jax.vmap(f)(x).sum()))(x),
}


def check_ops(mesh, x):
    """Each op in each program, first inside `jax.set_mesh` and then outside."""
    here = jnp.asarray(np.asarray(x))
    expected = {(name, p): np.asarray(run(OPS[name][0], here)) for name in OPS for p, run in PROGRAMS.items()}
    for name, inside in [(name, inside) for name in OPS for inside in (True, False)]:
        with jax.set_mesh(mesh) if inside else contextlib.nullcontext():
            for program, run in PROGRAMS.items():
                if not inside and "grad" in program and "jit" not in program:
                    continue
                np.testing.assert_allclose(
                    run(OPS[name][1], x), expected[name, program], rtol=5e-3, err_msg=f"{name}, {program}, {inside}"
                )
        # What is not on the mesh is not touched by what was.
        np.testing.assert_allclose(jax.grad(OPS[name][1])(1.5), jax.grad(OPS[name][0])(1.5), rtol=5e-3)


def check_loops(mesh, x):
    """A traced loop is right, or refused with what to write, which is right."""
    loop = lambda x, **options: jaxpyop.py_function(doubled, [x], F, **({"mode": "traced", "max_steps": 60} | options))
    values = np.asarray(jax.vmap(doubled_by_jax)(np.asarray(x)))
    slopes = values / np.asarray(x)
    refused = 0
    for inside in (True, False):
        with jax.set_mesh(mesh) if inside else contextlib.nullcontext():
            for program, wanted in (("vmap", values), ("jit of vmap of grad", slopes), ("jit of grad of vmap", slopes)):
                np.testing.assert_allclose(PROGRAMS[program](lambda x: loop(x, mode="eager"), x), wanted, rtol=1e-5)
                try:
                    np.testing.assert_allclose(PROGRAMS[program](loop, x), wanted, rtol=1e-5)
                except NotImplementedError as error:
                    assert "mesh with Explicit axes; make the mesh with axis_types" in str(error)  # noqa: PT017
                    refused += 1
    assert (refused > 0) == (AxisType.Explicit in mesh.axis_types), refused


def doubled_by_jax(x):
    return jax.lax.while_loop(lambda x: x < 100.0, lambda x: x * 2, x)


def on(kind):
    """A mesh over eight devices, and an array on it."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    return mesh, jax.device_put(jnp.arange(1.0, 9.0), NamedSharding(mesh, P("d")))


CHECKS = {
    "ops": lambda: check_ops(*on(AxisType.Explicit)),
    "loops on explicit axes": lambda: check_loops(*on(AxisType.Explicit)),
    "loops on automatic axes": lambda: check_loops(*on(AxisType.Auto)),
}

if __name__ == "__main__":
    many_programs.main(CHECKS, seconds=100)
