"""The rules that are functions of the user: what `vjp=f`, `jvp=f` and `bwd` are given, and what they return.

A rule gets the arguments of the function, each in its own structure, and results, cotangents and tangents in the
structure of `Tout`. What it returns is taken apart by the same structures (`_values/arguments.py` has the errors about
another structure), and checked.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._dtypes import is_inexact
from jaxpyop._host import SEQUENTIAL, Method
from jaxpyop._native import is_native
from jaxpyop._op.body import Body, DerivativeBody, UserBody, call_with_advice
from jaxpyop._op.request import Op, is_differentiable, numerical
from jaxpyop._refusal import refusal
from jaxpyop._values import Leaf, Struct, cast_to_numpy, check_traced, decode, show_shape, spread


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

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        if has_padding_or_keys(self.base) or not all(map(is_inexact, self.op.spec.leaves)):
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

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        if has_padding_or_keys(self.base):
            return None
        inputs, outputs, cotangents = self.split(arrays)
        zero = lambda out: dataclasses.replace(out, is_zero=True) if is_inexact(out) else None
        given = [zero(out) if c is None else c for c, out in zip(self.per_result(cotangents, outputs), outputs)]
        args = self.base.arguments.filled(inputs), in_structure(self.op, outputs), in_structure(self.op, given)
        return args, {}, places_of_cotangents(self, inputs), True


def places_of_cotangents(rule: DerivativeBody, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The structure of what a rule for cotangents returns: the number of a result of the call for each array.

    It is -1 for a cotangent that nobody asked for, and None for what can have none.
    """
    wanted = itertools.count()
    places = [next(wanted) if p else -1 if is_inexact(x) else None for p, x in zip(rule.perturbed, inputs)]
    return rule.base.arguments.filled_with_tangents(places)


def has_padding_or_keys(base: UserBody) -> bool:
    """Tell whether a function has padded results or typed keys, which its rules get in another form than arrays."""
    return base.op.spec.returned_spec is not None or any(base.inputs.key_impls)


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
    """Return a cotangent for each result of the function: zeros where JAX gives none.

    A result that cannot have a cotangent has one of float0, for a rule that can get one: JAX cannot trace these, and
    Numba does not have them.
    """
    has_float0 = not is_differentiable(rule.func) and not is_native(rule.func)
    zeros = jnp.zeros if rule.op.on_jax else np.zeros

    def zero(out: Any) -> Any:
        if not is_inexact(out):
            return np.zeros(out.shape, jax.dtypes.float0) if has_float0 else None
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
