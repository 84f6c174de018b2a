"""The rules that are functions of the user, as bodies: `vjp=f`, `jvp=f` and `transpose=f`.

A rule of a derivative takes the op's inputs, its results, and tangents or cotangents.

`transpose=f` declares that the function is linear in its floating inputs. Then it is its own derivative, and the
transpose of its transpose is the function again. So the two give the derivatives of every order. The bodies of both
take the inputs that are not floating first, and then the inputs in which they are linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import SEQUENTIAL, Environment, Method
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, CotangentBody, DerivedBody, TangentBody, call_with_advice
from jaxpyop._op.primitive import Batching, Call, Operands
from jaxpyop._op.request import Op, is_differentiable
from jaxpyop._op.values import Leaf, Struct, cast_to_numpy, check_traced, decode, kind_of, show_shape


def method_of_rules(op: Op) -> Method:
    """How the rules of an op run under `vmap`: as its function does, or once per element.

    The padded results of a block differ in length from element to element. With `on_error=`, an element that fails must
    not take the residuals of the others with it.
    """
    per_element = op.spec.returned_spec is not None or (op.rules.fwd is not None and op.failures is not None)
    return SEQUENTIAL if per_element and op.vmap_method.whole_batch else op.vmap_method


class MissingTangents(TangentBody):
    """Takes the place of tangents that no rule gives. It raises an error when it runs."""

    def __init__(self, base: Body, perturbed: tuple[bool, ...], error: Callable[[], Exception]) -> None:
        super().__init__(base, perturbed)
        self._error = self.refusal = error

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        raise self._error()


class JvpRule(TangentBody):
    """The user's `jvp=` function."""

    rule_name = "jvp"

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = (), *, traced: bool = False) -> list[Any]:
        """Call the rule: on the host, or, if it is an op, as a part of the traced program."""
        inputs, outputs, tangents = self.split(arrays)
        args = tuple(inputs), tuple(outputs), tuple(self.per_input(tangents))
        likes = [Struct((*lead, *o.shape[len(lead) :]), o.dtype) for o in args[1]]
        return run_rule(self.op, "jvp", self.func, args, likes, list(map(is_inexact, likes)), traced)


class VjpRule(CotangentBody):
    """The user's `vjp=` function."""

    rule_name = "vjp"

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = (), *, traced: bool = False) -> list[Any]:
        """Call the rule: on the host, or, if it is an op, as a part of the traced program."""
        inputs, outputs, cotangents = self.split(arrays)
        found = decode(self.op, self.filled(cotangents, outputs, lead), outputs)
        return self.cotangents(inputs, lead, (tuple(inputs), decode(self.op, outputs, outputs), found), traced=traced)

    def filled(self, cotangents: Sequence[Any], outputs: Sequence[Any], lead: tuple[int, ...]) -> tuple[Any, ...]:
        """Return a cotangent for each result of the function, with zeros where JAX gives none."""
        found = self.per_result(cotangents, outputs)
        return tuple(self._zero(out, lead) if ct is None else ct for ct, out in zip(found, outputs))

    def _zero(self, out: Any, lead: tuple[int, ...]) -> Any:
        # JAX cannot trace arrays of float0, so a rule that is an op gets None for the cotangent of an integer result.
        is_none = is_differentiable(self.func) and not is_inexact(out)
        return None if is_none else zero_cotangent(out, lead, self.op)

    def cotangents(
        self, inputs: Sequence[Any], lead: tuple[int, ...], args: tuple[Any, ...], *, traced: bool = False
    ) -> list[Any]:
        """Return what the rule returns for these arguments, checked against the inputs."""
        likes = [Struct((*lead, *x.shape[len(lead) :]), x.dtype) for x in inputs]
        name = self.op.rules.vjp_name
        return run_rule(self.op, name, self.func, args, likes, self.perturbed, traced)


def zero_cotangent(out: Any, lead: tuple[int, ...], op: Op) -> Any:
    """Return the zero cotangent of a result that is not used, or that cannot have a cotangent (in float0)."""
    if not is_inexact(out):
        return np.zeros(out.shape, jax.dtypes.float0)
    return (jnp if op.on_jax else np).zeros((*lead, *out.shape[len(lead) :]), out.dtype)


def expanded(value: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
    """Reshape one value for each batch element, so that it broadcasts against an array with further axes."""
    return value.reshape((*value.shape, *[1] * (np.ndim(like) - value.ndim)))


# ------------------------------------------------------------ what a rule returned


def run_rule(
    op: Op, name: str, func: Any, args: tuple[Any, ...], likes: Sequence[Struct], wanted: Sequence[bool], traced: bool
) -> list[Any]:
    """Call a rule of the user, and check what it returns.

    Args:
        op: the op that has the rule.
        name: how errors name the rule. The rule "jvp" returns tangents of results, and others cotangents of inputs.
        func: the rule.
        args: its arguments.
        likes: the shapes and dtypes that the returned values must have.
        wanted: which of the values to return.
        traced: whether the rule is an op, and becomes a part of the traced program.

    Raises:
        ValueError: the rule returned more or fewer values, or a value of another shape.
    """
    of, kind = ("result", "tangent") if name == "jvp" else ("input", "cotangent")
    found = func(*args) if traced else call_with_advice(op, name, func, args, {})
    if len(likes) == 1 and not isinstance(found, (list, tuple)):
        found = (found,)
    if not isinstance(found, (list, tuple)) or len(found) != len(likes):
        raise ValueError(
            f"{op.title}: {name} returned {kind_of(found)}, and has to return one {kind} for each {of}, so "
            f"{len(likes)} of them, None for zero (an {of} is an array)"
        )
    return [
        _checked(op, f"{name} returned, for {of} {k},", value, like, traced)
        for k, (value, like) in enumerate(zip(found, likes))
        if wanted[k]
    ]


def _checked(op: Op, which: str, value: Any, like: Struct, traced: bool) -> Any:
    """Return one of a rule's values as an array of the shape and dtype that it must have."""
    if value is None:
        return (jnp if traced else np).zeros(like.shape, like.dtype)
    leaf = Leaf(np.dtype(like.dtype))
    if traced:
        check_traced(value.dtype, leaf, op.casting, which, op.title)
        array = jax.lax.convert_element_type(value, like.dtype)
    else:
        array = cast_to_numpy(value, leaf, op.casting, which, op.title)
        if type(value) in (bool, int, float, complex):
            # Only Python's own numbers are broadcast. An array without axes is more likely a sum by mistake.
            return np.full(like.shape, array, like.dtype)
    if array.shape != like.shape:
        raise ValueError(
            f"{op.title}: {which} shape {show_shape(array.shape)}; a tangent has its result's shape, and a cotangent "
            f"has its input's: {show_shape(like.shape)}"
        )
    return array


# -------------------------------------------------------------------- `transpose=f`


class LinearCall(Call):
    """Runs a linear function, or its transpose, on tangents or cotangents.

    Args:
        body: the function or its transpose.
        environment: that of the user's call.
        flags: 1 if the flag of `when=` comes first, and otherwise 0.
    """

    is_declared_linear = True
    body: LinearFunction | LinearTranspose

    def __init__(self, body: LinearFunction | LinearTranspose, environment: Environment, flags: int) -> None:
        super().__init__(
            body,
            environment,
            label="linear({})",
            on_jax=body.op.on_jax,
            batching=Batching(body.op.vmap_method),
            operands=Operands(flags, flags, rule_inputs=body.linear_inputs, conditional=bool(flags)),
        )

    def linear_part(self, floating: tuple[bool, ...]) -> Call:
        return self

    def transposed_linear_part(self, structs: Sequence[Struct]) -> Call:
        flags = self.operands.leading_inputs
        return LinearCall(self.body.transpose_for(structs[flags:]), self.environment, flags)


class LinearFunction(DerivedBody):
    """The user's function as a linear map: linear inputs come last, and only floating results are returned.

    `linear_inputs` stays 0 on purpose. The batching rule broadcasts linear inputs to the size of the batch, but this
    function expects an axis of size 1 for an input without a batch axis.

    Args:
        base: the function.
        floating: which of its inputs are floating.
    """

    def __init__(self, base: Body, floating: tuple[bool, ...]) -> None:
        super().__init__(base)
        self.floating = floating

    def in_order(self, values: Sequence[Any]) -> list[Any]:
        """Return the inputs in the order in which the function takes them."""
        count = len(self.floating) - sum(self.floating)
        fixed, linear = iter(values[:count]), iter(values[count:])
        return [next(linear) if floating else next(fixed) for floating in self.floating]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(self.in_order(structs)) if is_inexact(s)]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        return [value for value in self.base(*self.in_order(arrays), lead=lead) if is_inexact(value)]

    def transpose_for(self, structs: Sequence[Struct]) -> LinearTranspose:
        """Return the transpose for inputs of these shapes and dtypes."""
        return LinearTranspose(self, self.in_order(structs))


class LinearTranspose(DerivedBody):
    """The user's `transpose=` function: it maps the results' cotangents to the floating inputs' cotangents.

    Args:
        base: the linear function.
        inputs: the shapes and dtypes of all inputs of the function.
    """

    rule_name = "transpose"

    def __init__(self, base: LinearFunction, inputs: Sequence[Struct]) -> None:
        super().__init__(base)
        self.inputs = [Struct(s.shape, s.dtype) for s in inputs]
        self.outputs = base.base.shapes(self.inputs)
        self.linear_inputs = sum(map(is_inexact, self.outputs))

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, floating in zip(self.inputs, self.base.floating) if floating]

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        op = self.op
        given = iter(arrays[len(arrays) - self.linear_inputs :])
        cotangents = tuple(next(given) if is_inexact(out) else zero_cotangent(out, lead, op) for out in self.outputs)
        likes = [Struct((*lead, *s.shape), s.dtype) for s in self.inputs]
        return run_rule(op, "transpose", self.func, (cotangents,), likes, self.base.floating, traced=False)

    def transpose_for(self, structs: Sequence[Struct]) -> LinearFunction:
        """Return the linear function, which is the transpose of its transpose."""
        return self.base
