"""What a function uses and keeps of the code around it: closures, caches, and inputs that it keeps."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.checks import close, run
from tests.shared.functions import both_sides, numpy_function, py_function

F = jnp.float32
X = jnp.array([0.5, -1.0, 2.0])


# ---------------------------------------------------------- traced values are refused


class Model:
    def __init__(self, w):
        self.w = w
        self.other = np.ones(3)

    def apply(self, y):
        return y + self.w

    __call__ = apply


def in_a_variable(x, use):
    return lambda y: y + use(x)


ARGUMENT = "argument 0 of functools.partial"
FOUND = {
    "cell": (lambda x: lambda y: y + x, "x"),
    "default": (lambda x: lambda y, x=x: y + x, "x"),
    "default of a keyword": (lambda x: lambda y, *, x=x: y + x, "x"),
    "function as a default": (lambda x: lambda y, add=lambda y: y + x: add(y), "x"),
    "partial": (lambda x: functools.partial(lambda x, y: x + y, x), ARGUMENT),
    "list in a partial": (lambda x: functools.partial(lambda xs, y: xs[0] + y, [x]), ARGUMENT),
    "dict": (lambda x: in_a_variable({"x": [x]}, lambda x: x["x"][0]), "x"),
    "decorated": (lambda x: functools.wraps(np.sin)(lambda y: y + x), "x"),
    "bound to self": (lambda x: types.MethodType(lambda self, y: self + y, x), "self"),
    "attribute of a variable": (lambda x: (lambda model: lambda y: y * model.w)(Model(x)), r"model\.w"),
    "attribute of a method's object": (lambda x: Model(x).apply, r"self\.w"),
}


@pytest.mark.parametrize(("make", "name"), FOUND.values(), ids=FOUND)
def test_a_traced_value_of_the_code_around_is_named(make, name):
    for api in (numpy_function, py_function):
        with pytest.raises(ValueError, match=rf"func uses '{name}' from the code around it.*pass it through inp"):
            jax.make_jaxpr(lambda x: api(make(x), [2.0], F, output_shapes=()))(1.0)  # noqa: B023


holder: list = []
FOUND_IN_THE_FUNCTION = {
    "callable object": Model,
    "global": lambda x: holder.append(x) or (lambda y: y + holder[0]),
    "object in a dict": lambda x: in_a_variable({"a": [Model(x)]}, lambda models: models["a"][0].w),
    "cached function": lambda x: in_a_variable(functools.lru_cache(lambda: x), lambda get: get()),
}


@pytest.mark.parametrize("make", FOUND_IN_THE_FUNCTION.values(), ids=FOUND_IN_THE_FUNCTION)
def test_a_traced_value_that_only_the_function_finds_gets_the_same_advice(make):
    for api in (numpy_function, py_function):
        holder.clear()
        with pytest.raises(Exception, match=r"(?s)(Tracer|traced).*pass it through inp"):
            run(jax.jit(lambda x: api(make(x), [2.0], F, output_shapes=())), 1.0)  # noqa: B023
    holder.clear()


# --------------------------------------------------------------- concrete closures


@both_sides
def test_concrete_values_of_the_code_around_may_be_used(api):
    """They are read at each call; an attribute that is not used may be traced."""
    y, box, z = 2.0, [np.float32(3)], jnp.float32(4)

    def program(x, w):
        model = Model(w)
        return api(lambda x, v=1.0: (x + y + box[0] + z + v) * model.other[0], [x], F)

    f = jax.jit(program)
    assert f(F(0), 5.0) == 10
    box[0] = np.float32(5)
    assert f(F(0), 5.0) == 12


def test_functions_that_name_each_other_and_variables_that_are_not_set():
    even = lambda n: True if n == 0 else odd(n - 1)
    odd = lambda n: False if n == 0 else even(n - 1)
    if False:
        unset = 0
    ring = []
    ring.append(ring)
    other = lambda x: unset if x > 1000 else x + len(ring)
    assert jax.jit(lambda n: numpy_function(even, [n], jnp.bool_))(jnp.int32(6))
    assert jax.jit(lambda x: numpy_function(other, [x], F))(F(3)) == 4


def constants(n):
    """Made of many kinds of operations, custom derivatives and random numbers among them."""
    noise = jax.random.normal(jax.random.key(0), (n,))
    total, _ = jax.lax.scan(lambda c, x: (c + x, None), 0.0, noise)
    return jax.nn.relu(noise) * (total if total > -1e9 else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("over", [lambda f: f, jax.grad], ids=["value", "grad"])
def test_what_a_function_caches_of_its_own_is_an_array(over):
    """A cache that was filled while the shape was looked for is good afterwards."""
    cached = functools.lru_cache(constants)
    f = lambda x: py_function(lambda x: x * cached(x.shape[0]), [x], F).sum()
    x = jnp.arange(4.0)
    close(jax.jit(over(f))(x), over(lambda x: (x * constants(4)).sum())(x))
    assert not isinstance(cached(4), jax.core.Tracer)
    close(cached(4) * 1, constants(4))


def test_effects_do_not_happen_while_the_shape_is_looked_for():
    seen = []

    def body(x):
        jax.debug.callback(lambda v: seen.append(("debug", float(v))), 1.0)
        jaxpyop.py_func(lambda v: seen.append(("op", float(v))), [2.0], None)
        jax.jit(lambda: jax.debug.callback(lambda v: seen.append(("jit", float(v))), 3.0))()
        return x

    compiled = jax.jit(lambda x: py_function(body, [x], F)).lower(jnp.ones(2)).compile()
    jax.effects_barrier()
    assert seen == []
    run(compiled, jnp.ones(2))
    assert sorted(seen) == [("debug", 1.0), ("jit", 3.0), ("op", 2.0)]


# ------------------------------------------------------------- what a function keeps


KEEPING = {
    "jit": jax.jit,
    "grad": jax.grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x]))[0],
}


@pytest.mark.parametrize("program", KEEPING.values(), ids=KEEPING)
def test_a_function_that_keeps_its_inputs_may_be_traced_again(program):
    """Traced values of runs that are over are no traced values of the code around."""
    kept = []
    body = lambda x: kept.append(x) or x * 2
    for _ in range(2):
        assert program(lambda x: py_function(body, [x], F))(F(1)) == 2
    assert kept


def test_an_input_kept_from_a_differentiated_run():
    """It is an array when it is returned, and an error that says what to keep where it is used."""
    kept = []

    def body(x, keep, use):
        kept.append(keep(x))
        return kept[0] * x if use else kept[0]

    f = lambda keep, use: lambda x: py_function(body, [x, keep, use], F, output_shapes=())
    same = lambda x: x
    assert jax.grad(f(same, False))(3.0) == 1
    assert f(same, False)(F(4)) == 3
    assert jax.grad(f(same, False))(F(4)) == 0
    with pytest.raises(jax.errors.UnexpectedTracerError, match=r"(?s)keep jax.lax.stop_gradient.*unexpected tracer"):
        f(same, True)(F(3))
    kept.clear()
    assert jax.grad(f(jax.lax.stop_gradient, True))(F(3)) == 3
    assert f(jax.lax.stop_gradient, True)(F(5)) == 15
