"""The rules that are functions of the user: what `vjp=f`, `jvp=f` and `bwd` are given, and what they return.

A rule gets the arguments of the function, each in its own structure, and results, cotangents and tangents in the
structure of `Tout`. What it returns is taken apart by the same structures, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import SEQUENTIAL, Method, refusal
from jaxpyop._jaxcore import is_inexact
from jaxpyop._op.body import Body, DerivativeBody, UserBody, call_with_advice
from jaxpyop._op.request import Op, is_differentiable, numerical
from jaxpyop._op.values import Leaf, Struct, cast_to_numpy, check_traced, decode, show_shape, spread


def method_of_rules(op: Op) -> Method:
    """How the rules of an op run under `vmap`: as its function does, or once per element.

    The padded results of a block differ in length from element to element. The residuals of a block could not be told
    apart, where a program goes on with some of its elements. Differences move an element of the inputs at a time.
    """
    rules = op.rules
    differs = isinstance(rules.vjp, numerical) or isinstance(rules.jvp, numerical)
    per_element = op.spec.returned_spec is not None or rules.fwd is not None or differs
    return SEQUENTIAL if per_element and op.vmap_method.whole_batch else op.vmap_method


class MissingTangents(DerivativeBody):
    """Takes the place of tangents that no rule gives. It raises an error when it runs."""

    def __init__(self, base: Body, perturbed: tuple[bool, ...], error: Callable[[], Exception]) -> None:
        super().__init__(base, perturbed)
        self._error = self.refusal = error

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        raise self._error()


class JvpRule(DerivativeBody):
    """The user's `jvp=` function."""

    rule_name = "jvp"

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = (), *, traced: bool = False) -> list[Any]:
        """Call the rule: on the host, or, if it is an op, as a part of the traced program."""
        inputs, outputs, tangents = self.split(arrays)
        given = self.base.arguments.filled_with_tangents(list(map(_as_number, self.per_input(tangents))))
        args = self.base.arguments_of(inputs, self.func), in_structure(self.op, outputs), given
        found = self.func(*args) if traced else call_with_advice(self.op, "jvp", self.func, args, {})
        return tangents_of_results(self.op, found, with_lead(outputs, lead), traced)

    def written(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        if not _has_arrays_alone(self):
            return None
        inputs, outputs, tangents = self.split(arrays)
        arguments, leaves = self.base.arguments, self.op.spec.leaves
        given = arguments.filled_with_tangents(self.per_input(tangents))
        args = arguments.filled(inputs), in_structure(self.op, outputs), given
        return args, {}, in_structure(self.op, range(len(leaves))), True


class VjpRule(DerivativeBody):
    """The user's `vjp=` function."""

    rule_name = "vjp"

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = (), *, traced: bool = False) -> list[Any]:
        """Call the rule: on the host, or, if it is an op, as a part of the traced program."""
        inputs, outputs, cotangents = self.split(arrays)
        given = cotangents_of_results(self, cotangents, outputs, lead)
        values = (in_structure(self.op, decode(self.op, arrays, outputs)) for arrays in (outputs, given))
        args = (self.base.arguments_of(inputs, self.func), *values)
        found = self.func(*args) if traced else call_with_advice(self.op, "vjp", self.func, args, {})
        return cotangents_of_inputs(self.base, "vjp", found, with_lead(inputs, lead), self.perturbed, traced)

    def written(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        # A cotangent that is zero is an array that no one has.
        if not _has_arrays_alone(self) or not all(self.nonzero or ()):
            return None
        inputs, outputs, cotangents = self.split(arrays)
        arguments, wanted = self.base.arguments, iter(range(sum(self.perturbed)))
        args = arguments.filled(inputs), in_structure(self.op, outputs), in_structure(self.op, cotangents)
        numbers = [next(wanted) if p else -1 if is_inexact(x) else None for p, x in zip(self.perturbed, inputs)]
        return args, {}, arguments.filled_with_tangents(numbers), True


def _has_arrays_alone(rule: DerivativeBody) -> bool:
    """Tell whether a rule gets and returns no more than arrays that have a derivative."""
    spec, keys = rule.op.spec, rule.base.inputs.key_impls
    return spec.returned_spec is None and not any(keys) and all(map(is_inexact, spec.leaves))


def in_structure(op: Op, values: Sequence[Any]) -> Any:
    """The values of an op's results, or their cotangents, in the structure of `Tout`.

    Arrays without axes are NumPy's numbers, as in the inputs of a NumPy function. One of float0 has no number.
    """
    return jax.tree.unflatten(op.spec.returned.tree, list(map(_as_number, values)))


def _as_number(value: Any) -> Any:
    is_number = type(value) is np.ndarray and value.ndim == 0 and value.dtype != jax.dtypes.float0
    return value[()] if is_number else value


def cotangents_of_results(
    rule: DerivativeBody, cotangents: Sequence[Any], outputs: Sequence[Any], lead: tuple[int, ...]
) -> list[Any]:
    """Return a cotangent for each result of the function: zeros where JAX gives none."""
    zeros = jnp.zeros if rule.op.on_jax else np.zeros

    def zero(out: Any) -> Any:
        if not is_inexact(out):
            # JAX cannot trace arrays of float0, so a rule that is an op gets None for an integer result.
            return None if is_differentiable(rule.func) else np.zeros(out.shape, jax.dtypes.float0)
        return zeros((*lead, *out.shape[len(lead) :]), out.dtype)

    return [zero(out) if ct is None else ct for ct, out in zip(rule.per_result(cotangents, outputs), outputs)]


def with_lead(arrays: Sequence[Any], lead: tuple[int, ...]) -> list[Struct]:
    """The shapes and dtypes of arrays, with the batch axes in full size."""
    return [Struct((*lead, *x.shape[len(lead) :]), x.dtype) for x in arrays]


# ------------------------------------------------------------ what a rule returned


def cotangents_of_inputs(
    body: UserBody, name: str, found: Any, likes: Sequence[Struct], wanted: Sequence[bool], traced: bool = False
) -> list[Any]:
    """Return the cotangents of the wanted inputs from what a rule returned.

    Args:
        body: the user's function.
        name: how errors name the rule.
        found: what the rule returned.
        likes: the shapes and dtypes of the inputs.
        wanted: which of them have a cotangent.
        traced: whether the rule is a part of the traced program.

    Raises:
        ValueError: the rule returned another structure, or a value of another shape.
    """
    op = body.op
    try:
        values = body.arguments.take_apart(found, list(map(is_inexact, likes)), f"{op.title}: {name} returned")
        return [
            _checked(op, f"{name} returned, for {place},", value, like, traced)
            for (place, value), like, mark in zip(values, likes, wanted)
            if mark
        ]
    except Exception as error:
        refusal(error)
        raise


def tangents_of_results(op: Op, found: Any, likes: Sequence[Struct], traced: bool) -> list[Any]:
    """Return the tangents of the inexact results, whose shapes and dtypes are among `likes`, from what `jvp=` returned.

    Raises:
        ValueError: the rule returned another structure, or a value of another shape.
    """
    skeleton, said = op.spec.returned.skeleton, f"{op.title}: jvp returned"
    whole = "the result" if isinstance(skeleton, Leaf) else "result"
    try:
        values = spread(skeleton, found, whole, said, of="result")
        return [
            _checked(op, f"jvp returned, for {place},", value, like, traced)
            for (place, _, value), like in zip(values, likes, strict=True)
            if is_inexact(like)
        ]
    except Exception as error:
        refusal(error)
        raise


def _checked(op: Op, which: str, value: Any, like: Struct, traced: bool) -> Any:
    """Return one of a rule's values as an array of the shape and dtype that it must have."""
    if value is None:
        return (jnp if traced else np).zeros(like.shape, like.dtype)
    leaf = Leaf(np.dtype(like.dtype))
    if traced:
        value = jnp.asarray(value)
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
            f"has its argument's: {show_shape(like.shape)}"
        )
    return array
