"""Programs on a backend without callbacks, in a process of their own.

A PJRT client of XLA's CPU, from a package, is registered as a plugin of its own: its devices are not those of
`jax.devices("cpu")`, and its programs cannot call Python. That is what an accelerator of a plugin looks like.
Run as a script, it runs every program and writes down as JSON what went wrong.
"""

# The plugin is registered before the client is made.

# ruff: noqa: PT017  # No pytest is in that process.

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxpyop

PACKAGES = ("fastatomstruct_xla_cpu", "lammps_jax_pjrt_cpu")
F = jnp.float32
PROGRAMS = {}


def library():
    """The plugin, or None where no package has it."""
    for package in PACKAGES:
        if (spec := importlib.util.find_spec(package)) is not None:
            for folder in spec.submodule_search_locations or ():
                if found := sorted(pathlib.Path(folder).rglob("*pjrt*.so")):
                    return str(found[0])
    return None


def program(func):
    PROGRAMS[func.__name__] = func
    return func


def ones():
    return jnp.arange(1.0, 4.0)


def same(got, wanted):
    there = {device for x in jax.tree.leaves(got) for device in x.devices()}
    assert there <= set(jax.devices()), there
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5), got, wanted)


class Body:
    """A body that looks at its input, and remembers on which devices it was."""

    __name__ = "body"

    def __init__(self):
        self.devices = set()

    def __call__(self, x):
        if not isinstance(x, jax.core.Tracer):
            self.devices |= x.devices()
        return x * 2 if float(jnp.sum(x)) > 0 else -x


def op(x, body=None):
    return jaxpyop.py_function(body or Body(), [x], F, output_shapes=np.shape(x))


@contextlib.contextmanager
def transfers():
    """The shapes of the arrays that were brought to the host in a block."""
    kind = type(jnp.ones(1))
    found, own = [], kind._value

    def value(self):
        found.append(self.shape)
        return own.fget(self)

    kind._value = property(value)
    try:
        yield found
    finally:
        kind._value = own


@program
def it_is_another_backend():
    assert jax.devices()[0] not in jax.devices("cpu")
    same(jax.jit(jnp.sin)(ones()), np.sin([1, 2, 3]))


@program
def jit_says_what_to_use():
    try:
        jax.jit(lambda x: op(x) + 1)(ones())
    except NotImplementedError as error:
        assert "jaxpyop.jit" in str(error)
        assert "mode='traced'" in str(error)
        return
    raise AssertionError("nothing was raised")


@program
def bodies_get_arrays_of_the_backend():
    body = Body()
    same(jaxpyop.jit(lambda x: op(x * 2, body) + 1)(ones()), [5, 9, 13])
    assert body.devices == {jax.devices()[0]}


@program
def only_the_scalar_that_is_asked_for_comes_to_the_host():
    step = jaxpyop.jit(jax.value_and_grad(lambda x: jnp.sum(op(jnp.sin(x)))))
    x = ones()
    jax.block_until_ready(step(x))
    with transfers() as found:
        jax.block_until_ready(step(x))
    assert found == [()], found


@program
def arrays_of_the_cpu_stay_there():
    cpu = jax.devices("cpu")[0]
    body = Body()
    out = jaxpyop.jit(lambda x: op(x * 2, body) + 1)(jax.device_put(np.ones(3, np.float32), cpu))
    assert out.devices() == body.devices == {cpu}


@program
def numpy_functions():
    pure = lambda x: jaxpyop.numpy_function(np.sin, [x], F)
    stateful = lambda x: jaxpyop.py_func(np.sin, [x], F, ordered=True)
    same(jaxpyop.jit(lambda x: pure(x) + stateful(x * 1))(ones()), 2 * np.sin([1, 2, 3]))
    same(jax.vmap(pure)(ones()), np.sin([1, 2, 3]))
    same(jaxpyop.jit(jax.vmap(pure))(ones()), np.sin([1, 2, 3]))


@program
def gradients_of_any_order():
    cube = lambda x: jaxpyop.py_function(lambda x: jnp.sum(x**3), [x], F, output_shapes=())
    same(jaxpyop.jit(jax.grad(cube))(ones()), [3, 12, 27])
    same(jaxpyop.jit(jax.hessian(cube))(ones()), np.diag([6, 12, 18]))
    same(jaxpyop.jit(jax.vmap(jax.grad(op)))(ones()), [2, 2, 2])
    same(jaxpyop.jit(lambda x: jax.jvp(op, (x,), (x,))[1])(ones()), [2, 4, 6])


@program
def gradients_by_rules():
    vjp = (lambda x: (np.sin(x), np.cos(x)), lambda slopes, ct: (slopes * ct[0],))
    sine = lambda x: jnp.sum(jaxpyop.numpy_function(np.sin, [x], F, vjp=vjp))
    same(jaxpyop.jit(jax.grad(sine))(ones()), np.cos([1, 2, 3]))


@program
def loops_run_from_python():
    scan = lambda x: lax.scan(lambda c, v: (op(c) * v, c), 0.1, x)
    same(jaxpyop.jit(scan)(ones()), (4.8, [0.1, 0.2, 0.8]))
    same(jaxpyop.jit(jax.grad(lambda x: scan(x)[0]))(ones()), [4.8, 2.4, 1.6])
    same(jaxpyop.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: op(c), x))(ones()), [8, 16, 24])
    loop = lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, op(s[1])), (0, x))
    same(jaxpyop.jit(loop)(ones()), (3, [8, 16, 24]))
    for sign, wanted in ((1, [2, 4, 6]), (-1, [-1, -2, -3])):
        same(jaxpyop.jit(lambda x: lax.cond(x[0] > 0, op, lambda x: x, x))(sign * ones()), wanted)


@program
def effects_run_once_and_in_order():
    seen = []
    note = lambda x, name: jaxpyop.py_func(lambda x: seen.append(name), [x], None)
    jaxpyop.jit(lambda x: [note(x, "a"), note(x + 1, "b"), x][2])(ones())
    assert seen == ["a", "b"]


@program
def errors_are_the_bodys_own():
    def fail(x):
        raise KeyError("mine")

    try:
        jaxpyop.jit(lambda x: jaxpyop.py_function(fail, [x], F, output_shapes=()) + 1)(ones())
    except KeyError as error:
        assert error.args == ("mine",)
        return
    raise AssertionError("nothing was raised")


def saved_programs_run_where_they_were_exported_for():
    body = Body()
    loss = lambda x: jnp.sum(op(jnp.sin(x), body) ** 2)
    names = {"body": body}
    for platforms in (None, [jax.devices()[0].platform], ["cuda", jax.devices()[0].platform]):
        for fun in (loss, jax.value_and_grad(loss)):
            data = jaxpyop.export(fun, functions=names, platforms=platforms)(ones()).to_bytes()
            same(jaxpyop.load(data, functions=names)(ones()), jaxpyop.jit(fun)(ones()))
    assert body.devices == {jax.devices()[0]}


# `jax.export` needs it.
if importlib.util.find_spec("flatbuffers") is not None:
    program(saved_programs_run_where_they_were_exported_for)


def main():
    from jax._src import xla_bridge

    xla_bridge.register_plugin("standin", library_path=library(), priority=500)
    found = {}
    for name, func in PROGRAMS.items():
        try:
            func()
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
