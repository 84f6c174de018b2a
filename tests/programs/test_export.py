"""What can be exported, and how a loaded program behaves."""

import concurrent.futures
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numerical, numpy_function, py_function
from tests.programs import saved_programs
from tests.programs.saved_programs import F, branches, cube, loss, of_branches, vjp_of_cube

X = jnp.asarray(saved_programs.X)
HERE = ["tests"]
FORMAT_1 = pathlib.Path(__file__).parent / "format_1.jaxpyop"


def loaded(fun, *args, **options):
    return jaxpyop.load(jaxpyop.export(fun, **options)(*args).to_bytes(), allow=HERE)


@pytest.mark.slow
def test_a_file(tmp_path):
    program = jaxpyop.export(of_branches)(X)
    program.save(tmp_path / "program")
    assert (tmp_path / "program").read_bytes() == program.to_bytes()
    assert repr(program).startswith("<jaxpyop.export of of_branches: ")
    for path in (tmp_path / "program", str(tmp_path / "program")):
        np.testing.assert_allclose(jaxpyop.load(path, allow=HERE)(X), of_branches(X), rtol=1e-6)


def test_the_program_is_cut_as_before():
    explained = jaxpyop.jit(of_branches).explain(X).splitlines()
    again = loaded(of_branches, X).explain(X).splitlines()
    assert [line.partition(":")[0] for line in again] == [line.partition(":")[0] for line in explained]


@pytest.mark.parametrize("wrap", [jax.jit, jaxpyop.jit, lambda f: f], ids=["jax.jit", "jaxpyop.jit", "a function"])
def test_what_is_exported(wrap):
    np.testing.assert_allclose(loaded(wrap(of_branches), X)(X), of_branches(X), rtol=1e-6)


def test_structs_in_place_of_arrays_and_static_arguments():
    scaled = jax.jit(lambda x, k: of_branches(x) * k, static_argnums=1)
    again = loaded(scaled, jax.ShapeDtypeStruct((3,), F), 3)
    np.testing.assert_allclose(again(X), of_branches(X) * 3, rtol=1e-6)


def test_a_static_value_stays_as_it_is():
    given = {"b": 2, "a": (3, {"z": None, "c": [1.5, True]}), 4: "x"}
    seen = []
    look = lambda x, value: seen.append(list(value.items())) or x
    rule = lambda inputs, outputs, cotangents: seen.append(list(inputs[1].items())) or (cotangents,)
    op = numpy_function(Tout=F(0), vjp=rule)(look)
    step = jax.value_and_grad(lambda x: op(x, jaxpyop.static(given)))
    names = {"functions": {"look": look, "rule": rule}}
    for call in (step, jax.jit(step), jaxpyop.load(jaxpyop.export(step, **names)(1.0).to_bytes(), **names)):
        call(1.0)
    assert seen == [list(given.items())] * 6


@pytest.mark.slow
def test_symbolic_shapes():
    (n,) = jax.export.symbolic_shape("n")
    fun = lambda x: jnp.sin(py_function(cube, [jnp.cos(x)], F)) + x
    again = loaded(fun, jax.ShapeDtypeStruct((n,), F))
    for x in (X, jnp.arange(5.0)):
        np.testing.assert_allclose(again(x), fun(x), rtol=1e-6)
    with pytest.raises(ValueError, match=r"<lambda>: the argument x has the shape \(2, 2\) where"):
        again(jnp.ones((2, 2)))


def test_symbolic_sizes_fit_each_other_even_without_a_segment():
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), F)
    both = lambda x, y: (numpy_function(cube, [x], F), numpy_function(cube, [y], F), numpy_function(np_sum, [x, y], F))
    again = jaxpyop.load(jaxpyop.export(both, functions={"sum": np_sum})(shape, shape).to_bytes(), **NAMED)
    for found, expected in zip(again(X, X), both(X, X), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="inconsistency between dimension size"):
        again(X, X[:1])


def test_a_function_is_called_with_the_whole_batch_and_with_the_users_step():
    rules = {"vjp": numerical(step=(0.5, 0.0)), "vmap_method": "expand_dims"}
    op, names = lambda a: numpy_function(of_mean, [a], F(0), **rules), {"of mean": of_mean}
    # Differences move one element of the batch at a time.
    for program, wanted in ((op, of_mean(X)), (jax.grad(op), (X + 0.5) ** 3 - (X - 0.5) ** 3)):
        again = jaxpyop.load(jaxpyop.export(jax.vmap(program), functions=names)(X).to_bytes(), functions=names)
        np.testing.assert_allclose(again(X), wanted, rtol=1e-4)


def of_mean(x):
    return x**2 * x.mean()


def np_sum(x, y):
    return x + y


NAMED = {"allow": HERE, "functions": {"sum": np_sum}}


SYMBOLIC = "size n is symbolic"
WHERE = {
    "in Tout": (lambda x: numpy_function(cube, [x], x), SYMBOLIC),
    "of a vmap": (jax.vmap(lambda a: numpy_function(cube, [a], a)), SYMBOLIC),
    "of a loop": (lambda x: jax.lax.map(lambda a: numpy_function(cube, [a], a), x), SYMBOLIC),
    "as an input": (lambda x: numpy_function(cube, [x.shape[0]], jnp.int32(0)), "cannot write the segment"),
}


@pytest.mark.parametrize(("fun", "said"), WHERE.values(), ids=WHERE)
def test_where_symbolic_sizes_are_refused(fun, said):
    with pytest.raises(ValueError, match=rf"jaxpyop\.export: .*{said}"):
        jaxpyop.export(fun)(jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), F))


def third(x):
    # A product with a weak type would be rounded.
    return (x * jnp.bfloat16(1 / 3)).astype(F)


def test_a_number_has_no_weak_type_in_a_function():
    op = lambda x: py_function(third, [x], jax.ShapeDtypeStruct((), F))
    again = jaxpyop.load(jaxpyop.export(op, functions={"third": third})(F(2.7)).to_bytes(), functions={"third": third})
    np.testing.assert_array_equal(again(2.7), op(2.7))


def test_a_batch_of_a_loaded_program_is_refused_unless_it_was_exported():
    with pytest.raises(NotImplementedError, match="call_exported"):
        jax.vmap(loaded(of_branches, X))(jnp.stack([X, X]))


def test_other_arguments():
    with pytest.raises(TypeError, match="arguments of the structure"):
        loaded(of_branches, X)([X])


def test_an_argument_is_named_by_its_place():
    """As in the function that was exported, without its static arguments."""
    fun = jax.jit(lambda n, weights, *, rate: of_branches(weights["a"]) * rate * n, static_argnums=0)
    again = jaxpyop.load(jaxpyop.export(fun)(2, {"a": X}, rate=F(1)).to_bytes(), allow=HERE)
    for weights, rate, said in ((X[:2], F(1), r"weights\['a'\] has"), (X, jnp.int32(1), "rate is")):
        with pytest.raises(ValueError, match=f": the argument {said} .* where the program was exported for"):
            again({"a": weights}, rate=rate)


def test_other_settings():
    data = jaxpyop.export(of_branches)(X).to_bytes()
    again = jaxpyop.load(data, allow=HERE)
    with jax.enable_x64(not jax.config.jax_enable_x64):
        with pytest.raises(ValueError, match="exported with jax_enable_x64="):
            jaxpyop.load(data, allow=HERE)
        with pytest.raises(ValueError, match="exported with jax_enable_x64="):
            again(X)


@pytest.mark.slow
def test_without_vjp_order_a_derivative_is_an_error_that_says_so():
    # The program has no segment, so no error of jax.export would come.
    for fun in (loss, lambda x: jnp.sum(py_function(branches, [x], F)), lambda x: py_function(branches, [x], F)[0]):
        again = loaded(fun, X)
        for transform in (jax.grad, lambda f: jaxpyop.jit(jax.grad(f)), lambda f: lambda x: jax.jvp(f, (x,), (x,))):
            with pytest.raises(
                NotImplementedError, match="exported without its derivative; export it with vjp_order=1"
            ):
                transform(again)(X)
        # What is not differentiated is no error.
        found = jax.grad(lambda y, again=again: y * jnp.sum(again(X)))(1.0)
        np.testing.assert_allclose(found, jnp.sum(fun(X)), rtol=1e-5)


@jax.custom_vjp
def own_rule(x):
    return py_function(branches, [x], F)


own_rule.defvjp(lambda x: (own_rule(x), x), lambda x, ct: (ct * 7,))


def test_a_rule_around_a_call():
    fun = lambda x: jnp.sum(own_rule(jnp.sin(x)))
    with pytest.raises(ValueError, match=r"custom_vjp_call is around a Python call.*vjp= or jvp="):
        jaxpyop.export(fun, vjp_order=1)(X)
    np.testing.assert_allclose(loaded(fun, X)(X), fun(X), rtol=1e-6)
    np.testing.assert_allclose(loaded(jax.grad(fun), X)(X), jax.grad(fun)(X), rtol=1e-6)


@pytest.mark.slow
def test_gradients_stop_where_they_did():
    fun = lambda x: jnp.sum(py_function(branches, [jax.lax.stop_gradient(jnp.sin(x)) + x], F) * jnp.cos(x))
    np.testing.assert_allclose(jax.grad(loaded(fun, X, vjp_order=1))(X), jax.grad(fun)(X), rtol=1e-5)


SHAPE = jax.ShapeDtypeStruct((3,), F)


class Static:
    pass


def mesh_program(x):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
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
    "a static input": (lambda x: numpy_function(cube, [x, Static()], SHAPE), r"'cube': an input.*Static"),
    "a function as input": (
        lambda x: numpy_function(cube, [x, lambda: 0], SHAPE),
        r"'cube': another process cannot find a function again: it is .*<lambda>",
    ),
    "shard_map": (mesh_program, r"inside of shard_map cannot be saved"),
    "a while under vmap": (lambda x: jax.vmap(saved_programs.in_while)(jnp.stack([x, -x])), "inside of while cannot"),
    "a mutable array": (with_ref, r"cannot be cut at its Python calls: a mutable array"),
    "a callback": (
        lambda x: jax.pure_callback(np.sin, SHAPE, numpy_function(cube, [x], SHAPE)),
        r"jax.export cannot write the segment \(pure_callback\)",
    ),
    "no derivative": (jax.grad(lambda x: numpy_function(cube, [x], SHAPE)[0]), r"'cube': a backward pass needs"),
    "a structure": (
        lambda x: jax.tree_util.Partial(cube, numpy_function(cube, [x], SHAPE)),
        r"the result is a structure",
    ),
}


@pytest.mark.parametrize(("fun", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_saved_is_refused(fun, said):
    with pytest.raises(ValueError, match=said):
        jaxpyop.export(fun)(X)


@pytest.mark.parametrize("vjp_order", [0, 1])
def test_an_effect_after_the_last_call_is_not_lost(vjp_order):
    def fun(x):
        y = numpy_function(cube, [x], SHAPE)
        jax.debug.print("{}", y)
        return y

    with pytest.raises(ValueError, match=r"jax.export cannot write the segment \(debug_"):
        jaxpyop.export(fun, vjp_order=vjp_order)(X)


@pytest.mark.parametrize("options", [{"loops": "some"}, {"vjp_order": -1}, {"vjp_order": True}, {"platforms": "cuda"}])
def test_bad_options(options):
    with pytest.raises((ValueError, TypeError), match=r"jaxpyop\.export: "):
        jaxpyop.export(of_branches, **options)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_file_of_format_1():
    """A file that an earlier version wrote."""
    program = saved_programs.PROGRAMS["value and gradient"]
    again = jaxpyop.load(FORMAT_1, functions={"tests.programs.saved_programs:branches": branches})
    for found, like in zip(again(X), program.fun(X), strict=True):
        np.testing.assert_allclose(found, like, rtol=1e-5)
