"""What a function may be, and what it may do: any callable, that calls JAX, asyncio, other ops and itself."""

import asyncio
import concurrent.futures
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import close, run
from tests.shared.functions import both_sides, numpy_function, py_function
from tests.shared.tables import named

F = jnp.float32


class Holder:
    """A class of methods of all kinds; the class itself is callable too."""

    __hash__ = None

    def scaled(self, by, x):
        return by * x

    negated = functools.partialmethod(scaled, -1)

    @classmethod
    def of_class(cls, x):
        return -x

    def __getattr__(self, name):
        raise AttributeError(f"nothing named {name}")

    def __call__(self, x):
        return -x


Made = type("Meta", (type,), {"__call__": lambda cls, x: -x})("Made", (), {})


@jax.custom_vjp
def with_custom_vjp(x):
    return -x


with_custom_vjp.defvjp(lambda x: (-x, None), lambda _, ct: (-ct,))

KINDS = {
    "ufunc": np.negative,
    "lambda": lambda x: -x,
    "partial": functools.partial(operator.mul, -1),
    "an object without a name or a hash": Holder(),
    "bound method": Holder().__call__,
    "method of an array": jnp.float32(0).__sub__,
    "partialmethod": Holder().negated,
    "class method": Holder.of_class,
    "class made by a metaclass": Made,
    "singledispatch": functools.singledispatch(lambda x: -x),
    "twice wrapped": functools.wraps(np.sin)(functools.wraps(np.cos)(lambda *a, **k: -a[0])),
    "jitted": jax.jit(lambda x: -x),
    "jitted with an op in it": jax.jit(lambda x: numpy_function(np.negative, [x], F)),
    "custom_vjp": with_custom_vjp,
    "np.vectorize": np.vectorize(lambda x: -x, otypes=[np.float32]),
}


@pytest.mark.parametrize("func", KINDS.values(), ids=KINDS)
@both_sides
def test_every_kind_of_callable(api, func):
    f = lambda x: api(func, [x], F, output_shapes=())
    assert (f if api is py_function else jax.jit(f))(F(3)) == f(F(3)) == -3


def test_callables_that_are_equal_are_still_two():
    equal = {"__eq__": lambda self, other: True, "__hash__": lambda self: 1}
    one, two = (type("Body", (), equal | {"__call__": lambda self, x, by=by: x * by})() for by in (1, 2))
    f = lambda x: [numpy_function(body, [x], F) for body in (one, two)]
    assert f(F(3)) == jax.jit(f)(F(3)) == [3, 6]


async def coroutine(x):
    return x


async def async_generator(x):
    yield x


def generator(x):
    yield x


NOT_PLAIN = {
    "async": coroutine,
    "async generator": async_generator,
    "generator": generator,
    "partial of generator": functools.partial(generator),
    "async __call__": type("Call", (), {"__call__": coroutine})(),
}


@pytest.mark.parametrize("func", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_async_and_generator_functions_are_refused_at_once(func):
    """As functions, and as rules."""
    with pytest.raises(TypeError, match=r"func is an async or generator function, .*write a plain function"):
        jaxpyop.py_function(Tout=F)(func)
    with pytest.raises(TypeError, match="vjp is an async or generator function"):
        numpy_function(np.sin, [1.0], F, vjp=(np.sin, func))


# ------------------------------------------------------------ what it may call


def test_asyncio_in_a_function():
    """Where a loop runs already, as in a notebook's cell, what the error advises works."""

    async def double(x):
        await asyncio.sleep(0)
        return x * 2

    def body(x):
        made = double(x)
        try:
            return asyncio.run(made)
        finally:
            made.close()  # or Python warns of a coroutine that nobody awaited

    async def cell():
        with pytest.raises(RuntimeError, match="running event loop") as caught:
            numpy_function(body, [F(3)], F)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return caught.value.__notes__, numpy_function(body, [F(3)], F, executor=pool)

    assert numpy_function(body, [F(3)], F) == 6
    notes, result = asyncio.run(cell())
    assert result == 6
    assert any("pass executor=concurrent.futures.ThreadPoolExecutor(1)" in note for note in notes)


INSIDE = {
    "grad": lambda x: jax.grad(lambda y: y**3)(x),
    "vmap": lambda x: jax.vmap(jnp.sin)(jnp.stack([x, x])).sum(),
    "the op": lambda x: py_function(lambda x: jnp.sin(x) * x, [x], F),
    "the op's gradient": lambda x: jax.grad(lambda y: py_function(jnp.sin, [y], F))(x),
    "a compiled op": lambda x: jax.jit(lambda x: py_function(jnp.sin, [x], F))(x),
}
SLOW = {"vmap"}  # JAX takes long to compile what differentiates it.


@pytest.mark.parametrize("inside", named(INSIDE, SLOW))
def test_transformations_of_jax_in_a_function(inside):
    """Its value in a compiled program, and its gradient."""
    f = lambda x: py_function(inside, [x], F, output_shapes=())
    close(jax.jit(f)(F(0.7)), inside(F(0.7)))
    close(jax.grad(f)(F(0.7)), jax.grad(inside)(F(0.7)))


def factorial(call):
    return lambda x: x * call(x - 1) if x > 1 else x


def test_an_op_that_calls_itself():
    op = lambda x: py_function(factorial(op), [x], F, output_shapes=())
    assert jax.jit(op)(F(6)) == 720
    close(jax.grad(op)(F(3)), 11)
    plain = lambda x: numpy_function(factorial(lambda x: np.asarray(plain(x))), [x], F, output_shapes=())
    assert plain(F(6)) == 720
    endless = lambda x: numpy_function(endless, [x], F)
    with pytest.raises(RecursionError, match="recursion"):
        endless(F(1))
    assert plain(F(3)) == 6


def test_a_compiled_program_that_calls_itself():
    """JAX refuses it while the program is being compiled, and runs it afterwards."""
    f = jax.jit(lambda x: py_function(factorial(lambda x: f(x)), [x], F, output_shapes=()))
    with pytest.raises(RecursionError, match="Recursively calling jit"):
        run(f, F(6))
    assert run(f, F(1)) == 1
    assert run(f, F(6)) == 720
