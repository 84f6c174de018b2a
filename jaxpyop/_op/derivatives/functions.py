"""Derivatives by functions of the user, `vjp=f` and `jvp=f`, and the errors of rules that are missing.

A rule is a body that takes the op's inputs, its results, and tangents or cotangents. A missing rule is a body that
cannot run. In a direct call, an error is raised when its results are used. A compiled program that contains it is
rejected at lowering and not at tracing: only by then has JAX dropped the operations whose results are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import SEQUENTIAL, Environment
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import (
    Body,
    ConditionalBody,
    CotangentBody,
    TangentBody,
    call_with_advice,
    failed_results,
    kept_for_failure,
)
from jaxpyop._op.primitive import Batching, Call, Linearization, Operands
from jaxpyop._op.request import Op, is_differentiable, no_jvp_error, no_second_derivative_error
from jaxpyop._op.values import Leaf, Struct, cast_to_numpy, check_traced, decode, show_shape

# A function that linearizes the call of a rule by finite differences, for second derivatives: see `second`.
Differences: TypeAlias = "Callable[[RuleCall, tuple[bool, ...]], Linearization]"
# A function that makes the body of a pullback from `nonzero_cotangents` and `wanted_cotangents`: see `CotangentBody`.
MakePullback = Callable[[tuple[bool, ...], tuple[bool, ...]], Body]


class RuleCall(Call):
    """Runs a rule as the op runs its function: on the same kind of arrays, and once per block if the function does."""

    def __init__(
        self,
        body: Body,
        op: Op,
        environment: Environment,
        *,
        leading_inputs: int = 0,
        one_by_one: bool = False,
        differences: Differences | None = None,
    ) -> None:
        # The padded results of a block differ in length from element to element, so their rule runs once per element.
        one_length = op.spec.returned_spec is None or not op.vmap_method.whole_batch
        method = op.vmap_method if one_length else SEQUENTIAL
        super().__init__(
            body,
            op,
            environment,
            label="jvp({})",
            on_jax=op.on_jax,
            batching=Batching(method, block_derivative=True, one_by_one=one_by_one),
            operands=Operands(leading_inputs=leading_inputs, rule_inputs=body.linear_inputs),
        )
        self.differences = differences

    def with_body(self, body: Body) -> Call:
        return RuleCall(body, self.op, self.environment, differences=self.differences)

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        return arrays if self.body.goes_to_executor else None

    @property
    def rule(self) -> Any:
        """The body of the rule, without the flag of `when=`."""
        return self.body.base if isinstance(self.body, ConditionalBody) else self.body

    @property
    def program(self) -> Callable[..., list[Any]] | None:
        if self.differences is not None or self.operands.leading_inputs or self.op.spec.returned_spec is not None:
            return None
        return self.body.program if isinstance(self.body, (VjpRule, JvpRule)) and is_differentiable(self.func) else None

    @property
    def is_own_derivative(self) -> bool:
        # The user may write a pullback that is not linear in the cotangents, for example one that clips gradients. So a
        # pullback whose derivative is known is not taken for its own derivative.
        return not isinstance(self.rule, CotangentBody) or (self.differences is None and self.program is None)

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        if self.differences is not None:
            return self.differences(self, perturbed)
        # Nothing gives a second derivative, so an error is raised where one is used.
        skip = self.operands.leading_inputs
        body = MissingSecondDerivative(self.body, perturbed[skip:])
        return Linearization(self, RuleCall(body, self.op, self.environment), skip=skip)


class MissingSecondDerivative(TangentBody):
    """Takes the place of a rule's derivative if nothing gives it. It raises an error when it runs."""

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs[: len(self.perturbed)])

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        raise self.refusal()

    @property
    def refusal(self) -> Callable[[], Exception]:
        return lambda: no_second_derivative_error(self.title, self.op.rules)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Body:
        raise self.refusal()


class RuleTangents(TangentBody):
    """Tangents whose transpose is a separate rule, which `make_pullback` returns."""

    def __init__(self, base: Body, perturbed: tuple[bool, ...], make_pullback: MakePullback) -> None:
        super().__init__(base, perturbed)
        self.make_pullback = make_pullback

    def __getstate__(self) -> dict[str, Any]:
        # A worker only runs the tangents. The pullback is made while the program is traced, so it is not pickled.
        return vars(self) | {"make_pullback": None}

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Body:
        return self.make_pullback(nonzero_cotangents, self.perturbed)


class MissingJvp(RuleTangents):
    """Takes the place of the tangents if no rule gives them. It raises an error when it runs."""

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        raise self.refusal()

    @property
    def refusal(self) -> Callable[[], Exception]:
        return lambda: no_jvp_error(self.title, self.op.rules)


class JvpRule(RuleTangents):
    """The user's `jvp=` function."""

    @property
    def func(self) -> Any:
        return self.op.rules.jvp

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        args = tuple(map(tuple, self.split(arrays)))
        likes = [Struct((*lead, *o.shape[len(lead) :]), o.dtype) for o in args[1]]
        kept = kept_for_failure(self, arrays, lead) if lead else arrays
        try:
            return run_rule(self.op, "jvp", self.func, args, likes, [is_inexact(like) for like in likes], "result")
        except Exception as error:
            return failed_results(self, error, kept, lead)

    def program(self, *arrays: Any) -> list[Any]:
        """Do what `__call__` does as a part of the traced program, if the rule is an op."""
        args = tuple(map(tuple, self.split(arrays)))
        likes = [Struct(o.shape, o.dtype) for o in args[1]]
        return trace_rule(self.op, "jvp", self.func, args, likes, [is_inexact(like) for like in likes], "result")


class VjpRule(CotangentBody):
    """The user's `vjp=` function."""

    @property
    def func(self) -> Any:
        return self.op.rules.vjp

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        op = self.op
        inputs, outputs, cotangents = self.split(arrays)
        cotangents = decode(op, self.filled(cotangents, outputs, lead), outputs)
        kept = kept_for_failure(self, arrays, lead) if lead else arrays
        try:
            return self.checked(inputs, lead, (tuple(inputs), decode(op, outputs, outputs), cotangents))
        except Exception as error:
            return failed_results(self, error, kept, lead)

    def program(self, *arrays: Any) -> list[Any]:
        """Do what `__call__` does as a part of the traced program, if the rule is an op."""
        inputs, outputs, cotangents = self.split(arrays)
        likes = [Struct(x.shape, x.dtype) for x in inputs]
        args = tuple(inputs), tuple(outputs), self.filled(cotangents, outputs, ())
        return trace_rule(self.op, self.op.rules.vjp_name, self.func, args, likes, self.wanted_cotangents, "input")

    def filled(self, cotangents: Sequence[Any], outputs: Sequence[Any], lead: tuple[int, ...]) -> tuple[Any, ...]:
        """Return a cotangent for each result of the function, with zeros where JAX gives none."""
        found = zip(self.per_result(cotangents, outputs), outputs)
        # JAX cannot trace arrays of float0, so a rule that is an op gets None for the cotangent of an integer result.
        zeros = _zero_or_none if is_differentiable(self.func) else zero_cotangent
        return tuple(zeros(out, lead, self.op) if ct is None else ct for ct, out in found)

    def checked(self, inputs: Sequence[Any], lead: tuple[int, ...], args: tuple[Any, ...]) -> list[Any]:
        """Return what the rule returns for these arguments, checked against the inputs."""
        likes = [Struct((*lead, *x.shape[len(lead) :]), x.dtype) for x in inputs]
        return run_rule(self.op, self.op.rules.vjp_name, self.func, args, likes, self.wanted_cotangents, "input")


def zero_cotangent(out: Any, lead: tuple[int, ...], op: Op) -> Any:
    """Return the zero cotangent of a result that is not used, or that cannot have a cotangent (in float0)."""
    if not is_inexact(out):
        return np.zeros(out.shape, jax.dtypes.float0)
    return (jnp if op.on_jax else np).zeros((*lead, *out.shape[len(lead) :]), out.dtype)


def _zero_or_none(out: Any, lead: tuple[int, ...], op: Op) -> Any:
    """Return the zero cotangent of a result, or None for an integer result."""
    return zero_cotangent(out, lead, op) if is_inexact(out) else None


# ------------------------------------------------------------ what a rule returned


def run_rule(
    op: Op, name: str, func: Any, args: tuple[Any, ...], likes: Sequence[Struct], wanted: Sequence[bool], of: str
) -> list[Any]:
    """Call a rule of the user, and check what it returns.

    Args:
        op: the op that has the rule.
        name: how errors name the rule.
        func: the rule.
        args: its arguments.
        likes: the shapes and dtypes that the returned values must have.
        wanted: which of the values to return.
        of: "input" if the values are cotangents of inputs, "result" if they are tangents of results.

    Raises:
        ValueError: the rule returned more or fewer values, or a value of another shape.
    """
    found = _one_each(op, name, call_with_advice(op, name, func, args), likes, of)
    values = zip(found, likes, wanted)
    return [_checked(op, name, k, value, like, of) for k, (value, like, wants) in enumerate(values) if wants]


def trace_rule(
    op: Op, name: str, func: Any, args: tuple[Any, ...], likes: Sequence[Struct], wanted: Sequence[bool], of: str
) -> list[Any]:
    """Do what `run_rule` does as a part of the traced program, for a rule that is an op."""
    found = _one_each(op, name, func(*args), likes, of)
    values = []
    for k, (value, like) in enumerate(zip(found, likes)):
        if wanted[k]:
            which = f"{name} returned, for {of} {k},"
            value = jnp.zeros(like.shape, like.dtype) if value is None else value
            check_traced(value.dtype, Leaf(np.dtype(like.dtype)), op.casting, which, op.title)
            _check_shape(op, which, value.shape, like, of)
            values.append(jax.lax.convert_element_type(value, like.dtype))
    return values


def _one_each(op: Op, name: str, found: Any, likes: Sequence[Struct], of: str) -> Sequence[Any]:
    kind, one = ("cotangent", "array input") if of == "input" else ("tangent", "result")
    is_list = isinstance(found, (list, tuple))
    if len(likes) == 1 and not is_list:
        return (found,)
    if not is_list or len(found) != len(likes):
        got = f"{len(found)} {kind}s" if is_list else "a single value"
        raise ValueError(
            f"{op.title}: {name} returned {got} for {len(likes)} {one}s; return one {kind} each, None for zero"
        )
    return found


def _checked(op: Op, name: str, k: int, value: Any, like: Struct, of: str) -> Any:
    """Return one of a rule's values as an array of the shape and dtype that it must have."""
    if value is None:
        return np.zeros(like.shape, like.dtype)
    which = f"{name} returned, for {of} {k},"
    array = cast_to_numpy(value, Leaf(np.dtype(like.dtype)), op.casting, which, op.title)
    if type(value) in (bool, int, float, complex):
        # Only Python's own numbers are broadcast. An array without axes is more likely a sum by mistake.
        return np.full(like.shape, array, like.dtype)
    _check_shape(op, which, array.shape, like, of)
    return array


def _check_shape(op: Op, which: str, shape: tuple[int, ...], like: Struct, of: str) -> None:
    if shape != like.shape:
        what = "a cotangent has its input's shape" if of == "input" else "a tangent has its result's shape"
        raise ValueError(f"{op.title}: {which} shape {show_shape(shape)}; {what}, {show_shape(like.shape)}")
