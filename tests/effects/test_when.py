"""`when=`: the function is called where it is true, and the results are zeros elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop
from tests.effects.ops import F, every_route, wait
from tests.shared.checks import Counter, close
from tests.shared.functions import APIS, every_api, numpy_function, py_function
from tests.shared.tables import named

XS = jnp.arange(4.0)


def counted():
    return Counter(lambda x: x * 2 + 1)


def seen(body):
    return sorted(float(args[0]) for args in body.seen)


# Ways to have a function of a number for each number.
WAYS = {
    "vmap": jax.vmap,
    "vmap of vmap": lambda f: lambda x: jax.vmap(jax.vmap(f))(x.reshape(2, 2)).ravel(),
    "map": lambda f: lambda x: lax.map(f, x),
}


@every_route
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_decides_for_each_element(way, route):
    bodies = {name: counted() for name in APIS}

    def of(name):
        return lambda x: APIS[name](bodies[name], [x], F, output_shapes=(), when=x % 2 == 1)

    for got in wait(route(lambda xs: [way(of(name))(xs) for name in APIS])(XS)):
        close(got, [0, 3, 0, 7])
    assert [seen(body) for body in bodies.values()] == [[1, 3]] * len(APIS)


@every_route
def test_a_constant_decides_once(route):
    body = counted()
    whens = [True, np.True_, np.array(True), jnp.array(True), False, np.False_, np.array(False), jnp.array(False)]
    f = route(lambda x: [numpy_function(body, [x + k], F, when=when) for k, when in enumerate(whens)])
    close(wait(f(1.0)), [3, 5, 7, 9, 0, 0, 0, 0])
    assert seen(body) == [1, 2, 3, 4]


@every_api
def test_zeros_have_the_promised_structure(api):
    tout, shapes = {"a": F, "n": [jnp.int32, jnp.bool_]}, {"a": (2, 3), "n": [(), (4,)]}
    for route in (jax.jit, lambda f: f):
        out = route(lambda w: api(lambda: 1 / 0, [], tout, output_shapes=shapes, when=w))(False)
        found = jax.tree.map(lambda a: (a.shape, a.dtype.name), out)
        assert found == {"a": ((2, 3), "float32"), "n": [((), "int32"), ((4,), "bool")]}
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(out))


def test_without_a_shape_zeros_have_the_shape_that_jit_would_take():
    for route in (jax.jit, lambda f: f):
        close(route(lambda x: py_function(lambda x: x.sum(), [x], F, when=False))(XS), np.zeros(()))
        close(route(lambda x: numpy_function(np.sinh, [x], F, when=False))(XS), np.zeros(4))


SKIPPING = {
    "stateless": lambda body, x, w: numpy_function(body, [x], F, when=w),
    "stateful": lambda body, x, w: numpy_function(body, [x], F, when=w, stateful=True),
    "ordered": lambda body, x, w: numpy_function(body, [x], F, when=w, ordered=True),
    "fwd": lambda body, x, w: jax.value_and_grad(
        lambda x: numpy_function(body, [x], F, when=w, vjp=(lambda x: (body(x), ()), lambda r, c: c))
    )(x)[0],
}


@pytest.mark.parametrize("op", SKIPPING.values(), ids=SKIPPING)
def test_a_program_enters_python_only_where_one_flag_is_true(op):
    body = counted()
    f = jax.jit(jax.vmap(lambda x: lax.scan(lambda x, i: (x + op(body, x, i % 4 == 0), None), x, jnp.arange(8))[0]))
    with jaxpyop.report() as report:
        close(wait(f(XS)), 9 * XS + 4)
    assert report.rows()[0]["calls"] == 2
    assert body.count == 2 * len(XS)


WHOLE = ["expand_dims", "broadcast_all"]


@every_route
@pytest.mark.parametrize("method", WHOLE)
def test_one_decision_for_a_whole_batch(method, route):
    body = Counter(lambda x, y: x + y)
    op = lambda x, y, w: numpy_function(body, [x, y], F, when=w, vmap_method=method, output_shapes=())
    f = route(jax.vmap(jax.vmap(op, (0, None, None)), (0, 0, None)))
    for when in (True, False):
        close(wait(f(XS.reshape(2, 2), XS[:2], jnp.array(when))), np.array([[0, 1], [3, 4]]) * when)
        assert body.count == 1


@pytest.mark.parametrize("method", WHOLE)
def test_a_whole_batch_cannot_be_left_out_in_part(method):
    f = jax.vmap(lambda x: numpy_function(np.sin, [x], F, when=x > 0, vmap_method=method))
    for route in (jax.jit, lambda f: f):
        with pytest.raises(ValueError, match=r"when= differs by element .*vmap_method='sequential'"):
            route(f)(XS)


SLOPE = {"vjp": lambda inputs, outputs, cotangents: 3 * inputs[0] ** 2 * cotangents}
DERIVATIVES = {
    "on values": lambda x: py_function(lambda x: x**3 if float(x) > 0 else x, [x], F, when=x > 1),
    "vjp=": lambda x: numpy_function(lambda x: x**3, [x], F, when=x > 1, output_shapes=(), **SLOPE),
    "stateful": lambda x: py_function(lambda x: x**3, [x], F, when=x > 1, stateful=True),
}


@every_route
@pytest.mark.parametrize("op", named(DERIVATIVES, slow=["vjp=", "stateful"]))
def test_gradients_are_zero_where_it_is_false(op, route):
    for got in wait(route(lambda xs: [jax.vmap(jax.grad(op))(xs), lax.map(jax.grad(op), xs)])(XS)):
        close(got, [0, 0, 12, 27])


@every_route
def test_neither_pass_runs_where_it_is_false(route):
    forward, backward = Counter(lambda x: x**2), Counter(lambda i, o, c: 2 * i[0] * c)
    op = lambda x: numpy_function(forward, [x], F, when=x > 1, vjp=lambda *a: backward(*a), output_shapes=())
    close(wait(route(jax.vmap(jax.grad(op)))(XS)), [0, 0, 4, 6])
    assert (forward.count, backward.count) == (2, 2)


BAD = {
    "a number": (1, r"when is 1; expected one boolean"),
    "a function": (lambda x: True, r"when is <function .*expected one boolean"),
    "a vector": (jnp.array([True]), r"when is bool of shape \(1,\); expected one boolean"),
}


@pytest.mark.parametrize(("when", "text"), BAD.values(), ids=BAD)
def test_what_is_no_boolean_is_an_error(when, text):
    for api in APIS.values():
        for route in (jax.jit, lambda f: f):
            with pytest.raises(TypeError, match=text):
                route(lambda x, api=api: api(lambda x: x, [x], F, when=when))(1.0)
