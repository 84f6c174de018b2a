"""Derivatives by functions of the user, `vjp=f` and `jvp=f`, and the errors of rules that are missing.

A rule is a body that takes the op's inputs, its results, and tangents or cotangents. A missing rule is a body that
cannot run. In a direct call, an error is raised when its results are used. A compiled program that contains it is
rejected at lowering and not at tracing: only by then has JAX dropped the operations whose results are not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import SEQUENTIAL, Batch, Method
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, ConditionalBody, CotangentBody, TangentBody, call_with_advice
from jaxpyop._op.primitive import Batching, Call, Linearization, Operands, masks_and_added_axes
from jaxpyop._op.request import Op, is_differentiable
from jaxpyop._op.values import Leaf, Struct, cast_to_numpy, check_traced, decode, show_shape


class RuleCall(Call):
    """Runs a rule as the op runs its function: on the same kind of arrays, and once per block if the function does.

    Args:
        rule: the body of the rule.
        source: the `UserCall` of the op.
        conditional: whether the flag of `when=` comes before the inputs of the rule.
    """

    after_fwd = False
    """Whether the receipt of a `FwdCall` comes before everything else."""

    def __init__(self, rule: TangentBody | CotangentBody, source: Any, *, conditional: bool) -> None:
        op = rule.op
        leading = self.after_fwd * (1 + conditional)
        super().__init__(
            # The receipt of a call that `when=` skipped is all zeros, so after `fwd` the flag is not needed.
            ConditionalBody(rule) if conditional and not self.after_fwd else rule,
            source.environment,
            label="jvp({})",
            on_jax=op.on_jax,
            batching=Batching(method_of_rules(op), one_by_one=self.after_fwd),
            operands=Operands(leading, unread_inputs=leading, rule_inputs=rule.linear_inputs),
        )
        self.rule, self.source, self.conditional = rule, source, conditional
        # Whether the rule is an op with derivatives, which can be a part of the traced program.
        is_plain = not leading and op.spec.returned_spec is None
        self._is_op = is_plain and isinstance(self.body, (VjpRule, JvpRule)) and is_differentiable(self.func)

    def program(self, args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]] | None:
        rule: Any = self.body
        return _over_batch(lambda *arrays: rule.run(arrays, (), traced=True), args, batch) if self._is_op else None

    @property
    def is_own_derivative(self) -> bool:
        # The user may write a pullback that is not linear in the cotangents, for example one that clips gradients. So a
        # pullback whose derivative is known is not taken for its own derivative.
        return not (self._is_op and isinstance(self.rule, VjpRule))

    def linearize(self, perturbed: tuple[bool, ...]) -> Linearization:
        # Nothing gives a second derivative, so an error is raised where one is used.
        skip = self.operands.leading_inputs
        error = functools.partial(_no_second_derivative_error, self.title)
        body = MissingTangents(self.body, perturbed[skip:], error)
        return Linearization(self, RuleCall(body, self.source, conditional=False), skip=skip)

    def transposed(self, nonzero_cotangents: tuple[bool, ...]) -> Call:
        if not isinstance(self.rule, TangentBody) or self.rule.base is not self.source.user_body:
            raise _no_second_derivative_error(self.title)
        pullback = self.source.pullback_by_rules(nonzero_cotangents, self.rule.perturbed)
        return type(self)(pullback, self.source, conditional=self.conditional)


def method_of_rules(op: Op) -> Method:
    """How the rules of an op run under `vmap`: as its function does, or once per element.

    Residuals belong to one element, and the padded results of a block differ in length from element to element.
    """
    per_element = op.rules.fwd is not None or op.spec.returned_spec is not None
    return SEQUENTIAL if per_element and op.vmap_method.whole_batch else op.vmap_method


def _over_batch(program: Callable[..., list[Any]], args: Sequence[Any], batch: Batch) -> Callable[..., list[Any]]:
    """The program of one element, as a program of the whole batch with the inputs `args`."""
    if not batch.sizes:
        return program
    masks, axes = masks_and_added_axes(args, batch.sizes) if batch.block else (batch.masks, [()] * len(args))
    for size, mask in zip(reversed(batch.sizes), reversed(masks)):
        program = jax.vmap(program, tuple(0 if mapped else None for mapped in mask), axis_size=size)
    whole = program
    return lambda *arrays: whole(*(jnp.squeeze(a, axis) if axis else a for a, axis in zip(arrays, axes)))


def _no_second_derivative_error(title: str) -> Exception:
    """The error of a derivative of a rule."""
    return NotImplementedError(
        f"{title}: second derivatives need a body of JAX operations: write it as a py_function; vjp= and jvp= give the "
        "first. Or make the rule an op with rules of its own, such as vjp='numerical' (docs: gradients, second "
        "derivatives)"
    )


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
    of = "result" if name == "jvp" else "input"
    found = _one_each(op, name, func(*args) if traced else call_with_advice(op, name, func, args), likes, of)
    return [
        _checked(op, f"{name} returned, for {of} {k},", value, like, of, traced)
        for k, (value, like) in enumerate(zip(found, likes))
        if wanted[k]
    ]


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


def _checked(op: Op, which: str, value: Any, like: Struct, of: str, traced: bool) -> Any:
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
        what = "a cotangent has its input's shape" if of == "input" else "a tangent has its result's shape"
        raise ValueError(f"{op.title}: {which} shape {show_shape(array.shape)}; {what}, {show_shape(like.shape)}")
    return array
