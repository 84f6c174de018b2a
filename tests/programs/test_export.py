"""What can be exported, and how a loaded program behaves."""

from __future__ import annotations

import concurrent.futures
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.programs import saved_programs
from tests.programs.saved_programs import F, branches, cube, loss, of_branches, vjp_of_cube

X = jnp.asarray(saved_programs.X)
HERE = ["tests.programs.saved_programs"]
FORMAT_1 = pathlib.Path(__file__).parent / "format_1.jaxpyop"


def loaded(fun, *args, **options):
    return jaxpyop.load(jaxpyop.export(fun, **options)(*args).to_bytes(), allow=HERE)


def test_a_file(tmp_path):
    program, path = jaxpyop.export(of_branches)(X), tmp_path / "program"
    program.save(path)
    assert path.read_bytes() == program.to_bytes()
    assert repr(program).startswith("<jaxpyop.export of of_branches: ")
    again = jaxpyop.load(str(path), allow=HERE)
    np.testing.assert_allclose(again(X), of_branches(X), rtol=1e-6)
    kinds = lambda cut: [line.partition(":")[0] for line in cut.explain(X).splitlines()]
    assert kinds(again) == kinds(jaxpyop.jit(of_branches))


def test_what_is_exported_may_be_jitted_and_take_structs_and_static_arguments():
    scaled = lambda x, k, *, y: of_branches(x) * k + y
    for jit in (jax.jit, jaxpyop.jit):
        data = jaxpyop.export(jit(scaled, static_argnums=1))(jax.ShapeDtypeStruct((3,), F), 3, y=F(1)).to_bytes()
        again = jaxpyop.load(data, allow=HERE)
        np.testing.assert_allclose(again(X, y=F(2)), of_branches(X) * 3 + 2, rtol=1e-6)


@pytest.mark.slow
def test_symbolic_shapes():
    (n,) = jax.export.symbolic_shape("n")
    fun = lambda x: jnp.sin(py_function(cube, [jnp.cos(x)], F)) + x
    again = loaded(fun, jax.ShapeDtypeStruct((n,), F))
    for x in (X, jnp.arange(5.0)):
        np.testing.assert_allclose(again(x), fun(x), rtol=1e-6)
    with pytest.raises(ValueError, match="input 0 has the shape"):
        again(jnp.ones((2, 2)))


def test_symbolic_sizes_fit_each_other_even_without_a_segment():
    shape, named = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), F), {"functions": {"add": lambda x, y: x + y}}
    both = lambda x, y: (numpy_function(cube, [y], F), numpy_function(named["functions"]["add"], [x, y], F))
    again = jaxpyop.load(jaxpyop.export(both, **named)(shape, shape).to_bytes(), allow=HERE, **named)
    np.testing.assert_array_equal(again(X, X), both(X, X))
    with pytest.raises(ValueError, match="inconsistency between dimension size"):
        again(X, X[:1])


SYMBOLIC = {
    "in Tout": (lambda x: numpy_function(cube, [x], x), "size n is symbolic"),
    "of a vmap": (lambda x: jax.vmap(lambda a: numpy_function(cube, [a], a))(x), "size n is symbolic"),
    "of a loop": (lambda x: jax.lax.map(lambda a: numpy_function(cube, [a], a), x), "size n is symbolic"),
    "as an input": (lambda x: numpy_function(cube, [x.shape[0]], jnp.int32(0)), "cannot write the segment"),
}


@pytest.mark.parametrize(("fun", "said"), SYMBOLIC.values(), ids=SYMBOLIC)
def test_where_symbolic_sizes_are_refused(fun, said):
    with pytest.raises(ValueError, match=rf"jaxpyop\.export: .*{said}"):
        jaxpyop.export(fun)(jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), F))


def test_other_arguments():
    again = loaded(of_branches, X)
    for other, said in ((jnp.ones(4), "has the shape"), (jnp.ones(3, jnp.int32), "is int32"), ([X], "the structure")):
        with pytest.raises((ValueError, TypeError), match=rf"(input 0|arguments of) {said}"):
            again(other)
    with pytest.raises(NotImplementedError, match="call_exported"):
        jax.vmap(again)(jnp.stack([X, X]))


def test_other_settings():
    data = jaxpyop.export(of_branches)(X).to_bytes()
    again = jaxpyop.load(data, allow=HERE)
    with jax.enable_x64(True):
        for call in (lambda: jaxpyop.load(data, allow=HERE), lambda: again(X)):
            with pytest.raises(ValueError, match="exported with jax_enable_x64="):
                call()


# The second program has no segment, so that no error of jax.export would come.
@pytest.mark.parametrize("fun", [loss, lambda x: py_function(branches, [x], F)[0]], ids=["segments", "none"])
def test_without_vjp_order_a_derivative_is_an_error_that_says_so(fun):
    again = loaded(fun, X)
    for transform in (jax.grad, lambda f: jaxpyop.jit(jax.grad(f)), lambda f: lambda x: jax.jvp(f, (x,), (x,))):
        with pytest.raises(NotImplementedError, match="exported without its derivative; export it with vjp_order=1"):
            transform(again)(X)
    # What is not differentiated is no error.
    np.testing.assert_allclose(jax.grad(lambda y: y * jnp.sum(again(X)))(1.0), jnp.sum(fun(X)), rtol=1e-5)


def test_a_rule_around_a_call():
    own_rule = jax.custom_vjp(lambda x: py_function(branches, [x], F))
    own_rule.defvjp(lambda x: (own_rule(x), x), lambda x, ct: (ct * 7,))
    fun = lambda x: jnp.sum(own_rule(jnp.sin(x)))
    with pytest.raises(ValueError, match=r"custom_vjp_call is around a Python call.*vjp= or jvp="):
        jaxpyop.export(fun, vjp_order=1)(X)
    np.testing.assert_allclose(loaded(jax.grad(fun), X)(X), jax.grad(fun)(X), rtol=1e-6)


def test_gradients_stop_where_they_did():
    fun = lambda x: jnp.sum(py_function(branches, [jax.lax.stop_gradient(jnp.sin(x)) + x], F) * jnp.cos(x))
    np.testing.assert_allclose(jax.grad(loaded(fun, X, vjp_order=1))(X), jax.grad(fun)(X), rtol=1e-5)


SHAPE = jax.ShapeDtypeStruct((3,), F)


def mesh_program(x):
    mesh, spec = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("d")
    return jax.shard_map(lambda x: numpy_function(cube, [x], SHAPE), mesh=mesh, in_specs=spec, out_specs=spec)(x)


def with_ref(x):
    ref = jax.new_ref(x)
    ref[...] = numpy_function(cube, [ref[...]], SHAPE)
    return ref[...]


POOL = concurrent.futures.ThreadPoolExecutor(1)
REFUSED = {
    "an executor": (lambda x: numpy_function(cube, [x], SHAPE, executor=POOL), r"'cube': .*executor="),
    "a rule": (jax.grad(lambda x: numpy_function(cube, [x], SHAPE, vjp=lambda i, o, c: c)[0]), r"vjp= again.*<lambda>"),
    "the shapes": (lambda x: numpy_function(cube, [x], F, output_shapes=lambda x: x.shape), r"output_shapes= again"),
    "a static input": (lambda x: numpy_function(cube, [x, POOL], SHAPE), r"'cube': an input.*Executor"),
    "a function as input": (lambda x: numpy_function(cube, [x, cube], SHAPE), r"'cube': an input.*function"),
    "shard_map": (mesh_program, r"inside of shard_map cannot be saved"),
    "a mutable array": (with_ref, r"cannot be cut at its Python calls: a mutable array"),
    "a callback": (
        lambda x: jax.pure_callback(np.sin, SHAPE, numpy_function(cube, [x], SHAPE)),
        r"jax.export cannot write the segment \(pure_callback\)",
    ),
    "no derivative": (jax.grad(lambda x: numpy_function(cube, [x], SHAPE)[0]), r"'cube': a backward pass needs"),
    "a structure": (lambda x: jax.tree_util.Partial(cube, numpy_function(cube, [x], SHAPE)), r"result is a structure"),
}


@pytest.mark.parametrize(("fun", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_saved_is_refused(fun, said):
    with pytest.raises(ValueError, match=said):
        jaxpyop.export(fun)(X)


@pytest.mark.parametrize("vjp_order", [0, 1])
def test_an_effect_after_the_last_call_is_not_lost(vjp_order):
    fun = lambda x: (y := numpy_function(cube, [x], SHAPE), jax.debug.print("{}", y))[0]
    with pytest.raises(ValueError, match=r"jax.export cannot write the segment \(debug_"):
        jaxpyop.export(fun, vjp_order=vjp_order)(X)


@pytest.mark.parametrize("options", [{"loops": "some"}, {"vjp_order": True}, {"platforms": "cuda"}], ids=repr)
def test_bad_options(options):
    with pytest.raises((ValueError, TypeError), match=r"jaxpyop\.export: "):
        jaxpyop.export(of_branches, **options)


def test_another_platform():
    again = jaxpyop.export(of_branches, platforms=["cuda"])(X).to_bytes()
    with pytest.raises(ValueError, match="cuda"):
        jaxpyop.load(again, allow=HERE)(X)
    np.testing.assert_allclose(loaded(of_branches, X, platforms=["cpu", "cuda"])(X), of_branches(X), rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives_of_rules_are_as_before():
    fun = lambda x: jnp.sum(numpy_function(cube, [x], SHAPE, vjp=vjp_of_cube))
    again = loaded(fun, X, vjp_order=2)
    np.testing.assert_allclose(jax.grad(again)(X), jax.grad(fun)(X))
    with pytest.raises(NotImplementedError, match="second derivatives"):
        jax.jacrev(jax.grad(again))(X)


def test_a_file_of_format_1():
    """A file that an earlier version wrote."""
    program = saved_programs.PROGRAMS["value and gradient"]
    again = jaxpyop.load(FORMAT_1, functions={"tests.shared.saved_programs:branches": branches})
    for found, like in zip(again(X), program.fun(X), strict=True):
        np.testing.assert_allclose(found, like, rtol=1e-5)
