"""Rules get and return values in the function's own terms, whatever its signature, and however it is called.

The gradients are compared with those of `jax.custom_vjp` and `jax.custom_jvp` by the same rules. These derivatives are
wrong on purpose, so that they tell whether the rules were asked, and each leaf has a weight of its own, by its place.
"""

import dataclasses
import inspect
import itertools
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.batches.programs import processes
from tests.gradients.bodies import TRANSFORMS, F
from tests.gradients.rules.cases import close_to
from tests.shared.examples import few, many
from tests.shared.tables import rows

APIS = {"numpy_function": numpy_function, "py_function": py_function}


class Pair(NamedTuple):
    a: Any
    b: Any


TOUT = {"y": jax.ShapeDtypeStruct((3,), F), "parts": Pair(jax.ShapeDtypeStruct((3,), F), jnp.int32(0))}


def is_array(leaf):
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def is_float(leaf):
    return is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)


def weights(inputs):
    """A number for each leaf of the inputs, by its place."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: 1 + zlib.crc32(jax.tree_util.keystr(path).encode()) % 97 / 50, inputs
    )


def value(inputs):
    """Squares of the floats, and what all else is."""
    pairs = list(zip(jax.tree.leaves(weights(inputs)), jax.tree.leaves(inputs), strict=True))
    found = sum(w * leaf * leaf for w, leaf in pairs if is_float(leaf))
    fixed = sum(w * (len(leaf) if isinstance(leaf, str) else leaf) for w, leaf in pairs if not is_float(leaf))
    y = np.ones(3, np.float32) * found
    return {"y": y, "parts": Pair(y * (2 + fixed), np.full(y.shape[:-1], 7, np.int32))}


def slopes(inputs):
    return jax.tree.map(lambda w, leaf: 3 * w * leaf if is_float(leaf) else None, weights(inputs), inputs)


def vjp(inputs, outputs, cotangents):
    ct = cotangents["y"] + 5 * cotangents["parts"].a
    fitting = lambda slope: slope * ct if np.ndim(slope) else (slope * ct).sum()
    return jax.tree.map(fitting, slopes(inputs))


def jvp(inputs, outputs, tangents):
    of_leaves = [jax.tree.leaves(tree, is_leaf=lambda x: x is None) for tree in (slopes(inputs), tangents)]
    moved = [slope * t for slope, t in zip(*of_leaves, strict=True) if t is not None]
    found = np.ones(3, np.float32) * sum(moved)
    return {"y": found, "parts": Pair(5 * found, None)}


def bwd(residuals, cotangents):
    return vjp(residuals, None, cotangents)


class Function:
    """A function, and its rules: `value` of its arguments, which `collected` returns in the documented order."""

    def __init__(self, func, fwd, collected):
        self.func = func
        self.collected = collected
        self.rules = {"vjp": {"vjp": vjp}, "pair": {"vjp": (fwd, bwd)}, "jvp": {"jvp": jvp}}

    def op(self, api, kind, **options):
        return APIS[api](Tout=TOUT, **self.rules[kind], **options)(self.func)

    def of_jax(self, kind):
        """What JAX's decorators make of the same rules."""
        return lambda *args, **kwargs: by_custom_rules(self.collected(*args, **kwargs), kind)


def with_signature(signature, arguments):
    scope = {"value": value}
    returned = {"func": "value(inputs)", "fwd": "(value(inputs), inputs)", "collected": "inputs"}
    for name, result in returned.items():
        exec(f"def {name}({signature}):\n    inputs = {arguments}\n    return {result}", scope)
    return Function(*(scope[name] for name in returned))


def by_custom_rules(inputs, kind):
    leaves, tree = jax.tree.flatten(inputs)
    marks = [is_float(leaf) for leaf in leaves]

    def filled(arrays, rest=leaves):
        given = iter(arrays)
        return jax.tree.unflatten(tree, [next(given) if mark else leaf for mark, leaf in zip(marks, rest)])

    def of_arrays(*arrays):
        return value(filled(arrays))

    def push(arrays, tangents):
        along = jvp(filled(arrays), None, filled(tangents, [None] * len(leaves)))
        outs = of_arrays(*arrays)
        return outs, {**along, "parts": along["parts"]._replace(b=np.zeros((), jax.dtypes.float0))}

    if kind == "jvp":
        function = jax.custom_jvp(of_arrays)
        function.defjvp(push)
    else:
        function = jax.custom_vjp(of_arrays)
        pull = lambda arrays, cotangents: tuple(jax.tree.leaves(vjp(filled(arrays), None, cotangents)))
        function.defvjp(lambda *arrays: (of_arrays(*arrays), arrays), pull)
    return function(*(leaf for mark, leaf in zip(marks, leaves) if mark))


def without_static(tree):
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, jaxpyop.static) else leaf, tree)


def derivative(f, call, kind):
    """A program of the floats of a call `(args, kwargs)`, and these floats."""
    leaves, tree = jax.tree.flatten(call)
    marks = [is_float(leaf) for leaf in leaves]

    def loss(floats):
        given = iter(floats)
        args, kwargs = jax.tree.unflatten(tree, [next(given) if m else leaf for m, leaf in zip(marks, leaves)])
        outs = f(*args, **kwargs)
        return (outs["y"] * jnp.arange(1.0, 4.0)).sum() + outs["parts"].a.sum(), outs["parts"].b

    floats = [jnp.asarray(leaf) for m, leaf in zip(marks, leaves) if m]
    if kind == "jvp":
        ones = lambda floats: list(map(jnp.cos, floats))
        return lambda floats: jax.jvp(loss, (floats,), (ones(floats),), has_aux=True), floats
    return jax.value_and_grad(loss, has_aux=True), floats


# ------------------------------------------------------------------ all signatures


@st.composite
def functions(draw):
    """A function, and the arguments of a call."""
    numbers = iter(np.linspace(0.5, 2.5, 40, dtype=np.float32))
    coin, several = st.booleans(), lambda most: st.integers(0, most)
    fixed = st.sampled_from(["text", jnp.int32(3), jaxpyop.static(2.5), jaxpyop.static((1, 2)), None, {}])

    def arrays(depth):
        kind = draw(st.sampled_from(["vector", "number", "dict", "list", "pair"] if depth else ["vector", "number"]))
        if kind == "vector":
            return jnp.asarray([next(numbers), next(numbers), next(numbers)])
        if kind == "number":
            return jnp.asarray(next(numbers))
        inner = arrays(depth - 1)
        return {"dict": {"z": inner, "a": draw(fixed)}, "list": [inner], "pair": Pair(draw(fixed), inner)}[kind]

    any_value = lambda: arrays(2) if draw(coin) else draw(fixed)
    default = lambda: draw(st.sampled_from(["2.5", "'unit'", "None", "{'of': 1.5}"]))
    count, has_rest = draw(st.integers(1, 3)), draw(coin)
    first_default = draw(st.integers(1, 3))
    parameters = [f"x{k}" + (f"={default()}" if k >= first_default else "") for k in range(count)]
    given = {f"x{k}": arrays(2) if k == 0 else any_value() for k in range(count) if k < first_default or draw(coin)}
    by_position = draw(several(count))
    rest = [any_value() for _ in range(draw(several(2)))] if has_rest and len(given) == count else []
    by_position = count if rest else min(by_position, next((k for k in range(count) if f"x{k}" not in given), count))
    args = [given.pop(f"x{k}") for k in range(by_position)] + rest
    for name in ("b", "a")[: draw(several(2))]:
        has_default = draw(coin)
        parameters += [name + (f"={default()}" if has_default else "")]
        given |= {} if has_default and draw(coin) else {name: any_value()}
    named = parameters[count:]
    has_more = draw(coin)
    given |= {name: any_value() for name in ("d", "c")[: draw(several(2))]} if has_more else {}
    star = ["*rest"] if has_rest else ["*"] if named else []
    signature = ", ".join([*parameters[:count], *star, *named, *(["**more"] if has_more else [])])
    names = [p.partition("=")[0] for p in parameters]
    inputs = ", ".join([*names[:count], *(["*rest"] if has_rest else []), *names[count:]])
    arguments = f"({inputs},{' *([more] if more else [])' if has_more else ''})"
    return signature, arguments, tuple(args), dict(draw(st.permutations(list(given.items()))))


def check(function, api, kind, wrap):
    signature, arguments, *call = function
    made = with_signature(signature, arguments)
    program, floats = derivative(made.op(api, kind), call, kind)
    wanted, _ = derivative(made.of_jax(kind), without_static(call), kind)
    close_to(wrap(program)(floats), wanted(floats))


EACH = {"function": functions(), "api": st.sampled_from(list(APIS)), "kind": st.sampled_from(["vjp", "pair", "jvp"])}
FEW = {"api": st.just("numpy_function"), "wrap": st.just(lambda f: f)}
test_any_signature = few(given(**EACH | FEW), check, 3)
test_many_signatures = many(given(**EACH, wrap=st.sampled_from(list(TRANSFORMS.values()))), check)


# ------------------------------------------------------------------- all programs


@dataclasses.dataclass(frozen=True)
class Lens:
    """An object that is no array, in whose place a method has `self`."""

    power: float

    def __rmul__(self, weight):
        return weight * self.power


def collected(self, p, unit="m", *rest, k, s=1.5, **more):
    return (self, p, unit, *rest, k, s, *([more] if more else []))


def func(*args, **kwargs):
    return value(collected(*args, **kwargs))


def fwd(*args, **kwargs):
    inputs = collected(*args, **kwargs)
    return value(inputs), inputs


func.__signature__ = fwd.__signature__ = inspect.signature(collected)
RICH = Function(func, fwd, collected)
A, B, C, D = np.linspace(0.5, 2.0, 12, dtype=np.float32).reshape(4, 3)
CALL = (
    (Lens(2.0), {"z": A, "a": Pair("text", B)}, "mm", C, np.array([3, 1, 2], np.int32)),
    {"d": D, "k": [B + 1], "c": jaxpyop.static(2.5)},
)
AXES = [0, None, 0, 0, None]


def saved(program):
    return lambda floats: jaxpyop.load(jaxpyop.export(program)(floats).to_bytes(), allow=["tests"])(floats)


def batched(program):
    return lambda floats: jax.vmap(program, (AXES,))(
        [x if axis is None else jnp.stack([x, x * 2]) for x, axis in zip(floats, AXES, strict=True)]
    )


METHODS = ("sequential", "expand_dims", "broadcast_all", "parallel")
PROGRAMS = {"jit": jax.jit, "cut": jaxpyop.jit, "saved": saved} | {
    method: lambda program: jax.jit(batched(program)) for method in METHODS
}
FAST = [("jit", "numpy_function", "vjp"), ("saved", "numpy_function", "pair"), ("expand_dims", "numpy_function", "jvp")]


@pytest.mark.parametrize(("name", "api", "kind"), rows(itertools.product(PROGRAMS, APIS, ["vjp", "pair", "jvp"]), FAST))
def test_every_program(name, api, kind):
    method = {"vmap_method": name} if name in METHODS else {}
    program, floats = derivative(RICH.op(api, kind, **method), CALL, kind)
    wanted, _ = derivative(RICH.of_jax(kind), without_static(CALL), kind)
    close_to(PROGRAMS[name](program)(floats), (batched if method else jax.jit)(wanted)(floats))


@pytest.mark.slow
def test_in_worker_processes():
    with processes(1) as pool:
        for kind in ("vjp", "jvp"):
            op = RICH.op("numpy_function", kind, vmap_method="parallel", executor=pool)
            program, floats = derivative(op, CALL, kind)
            wanted, _ = derivative(RICH.of_jax(kind), without_static(CALL), kind)
            close_to(jax.jit(batched(program))(floats), batched(wanted)(floats))


def test_methods():
    class Scaled(Lens):
        @numpy_function(Tout=F(0), vjp=lambda inputs, outputs, ct: 5 * inputs[0].power * inputs[1] * ct)
        def square(self, x):
            return self.power * x * x

        @py_function(Tout=F(0), vjp=(lambda self, x: (x, self.power * x), lambda slope, ct: (None, 7 * slope * ct)))
        def other(self, x):
            return x

    scaled = Scaled(2.0)
    assert jax.grad(scaled.square)(3.0) == 5 * 2 * 3
    assert jax.jit(jax.grad(scaled.other))(3.0) == 7 * 2 * 3


def test_a_rule_that_is_an_op_gets_numbers_as_they_are():
    @py_function(Tout=F, output_shapes=())
    def vjp(inputs, outputs, cotangents):
        x, count, table = inputs
        assert type(count) is type(table["of"]) is int
        return cotangents * x * len("x" * count) * table["of"]

    op = numpy_function(Tout=F(0), vjp=vjp)(lambda x, count, table={"of": 2}: x * count)
    slope = jax.grad(lambda x: op(x, jaxpyop.static(3)))
    assert (slope(2.0), jax.jit(jax.grad(slope))(2.0)) == (12, 6)


# ----------------------------------------------------------- what a rule may return


# Of a function of an integer, a dict and a default, which is not passed: what is returned, and what the error says.
ONES = np.ones(3, np.float32)
P = {"current": 2 * ONES, "on": [3.0, None]}
RIGHT = {
    "alone": P,
    "in its place": (None, P),
    "zero": (0, P, None),
    "of an integer, as JAX has it": (np.zeros((), jax.dtypes.float0), P),
    "of a default": (None, P, 7.0),
}
WRONG = {
    "of another argument": ((P, None), "vjp returned an array, for n, which has no derivative; return None for it"),
    "of an integer": ((1.0, P), "vjp returned a float, for n, which has no derivative"),
    "too few": ((P, P, P, P), "vjp returned a tuple of 4, and has to return one entry .* are n and p and scale"),
    "none": ((), "vjp returned a tuple of 0, and has to return one entry"),
    "keys": (
        {"current": ONES},
        r"vjp returned, for p, a dict with the keys \['current'\] where the argument is a dict",
    ),
    "nested": ({**P, "on": [1.0]}, r"vjp returned, for p\['on'\], a list of 1 where the argument is a list of 2"),
    "flat": ((None, [ONES, 1.0]), "vjp returned, for p, a list of 2 where the argument is a dict with the keys"),
    "shape": ({**P, "current": ONES[:2]}, r"vjp returned, for p\['current'\], shape \(2,\); .* its argument's: \(3,\)"),
    "a text inside": ({**P, "on": [3.0, 1.0]}, r"vjp returned a float, for p\['on'\]\[1\], which has no derivative"),
}


def returned(cotangents, transform=lambda f: f):
    """The gradient of a function whose rule returns this."""
    rule = lambda inputs, outputs, ct: cotangents
    op = numpy_function(Tout=F(0), name="mine", vjp=rule)(lambda n, p, scale=1.0: np.float32(0))
    loss = lambda x: op(jnp.int32(2), {"current": x, "on": [x[0], "unit"]})
    return transform(jax.grad(loss))(jnp.asarray(ONES))


@pytest.mark.parametrize("cotangents", RIGHT.values(), ids=RIGHT)
def test_what_a_rule_may_return(cotangents):
    np.testing.assert_array_equal(returned(cotangents), [5, 2, 2])


@pytest.mark.parametrize(("cotangents", "text"), WRONG.values(), ids=WRONG)
def test_what_a_rule_must_not_return(cotangents, text):
    with pytest.raises(ValueError, match=f"'mine': {text}"):
        returned(cotangents)
