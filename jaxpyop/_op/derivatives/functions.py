"""Derivatives by the user's own rules, `vjp=f` and `jvp=f`, and what is said where a rule is missing.

A rule is a body over the op's inputs, its results, and tangents or
cotangents. A missing rule is a call that cannot run: directly, its results
raise once they are used; a program with one in it is refused when it is
lowered, by when JAX has dropped what nobody uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._host import Environment
from jaxpyop._op.body import Struct, UserBody, advise, is_inexact
from jaxpyop._op.primitive import Call, Linearization, transposed
from jaxpyop._op.request import Op, no_jvp_error, no_second_derivative_error
from jaxpyop._op.values import Leaf, as_jax, cast_to_numpy, decode, show_shape

MakePullback = Callable[[tuple[bool, ...], tuple[bool, ...]], Any]  # of `given` and `wanted`: see `VjpRule`


class RuleCall(Call):
    """Runs a rule, on arrays as the function gets them, and once per batch where the function does."""

    order = "jvp({})"
    blocks = True

    def __init__(self, body: Any, op: Op, environment: Environment) -> None:
        super().__init__(body, op, environment)
        self.on_jax = op.on_jax
        if op.spec.returned_spec is None:  # results of lengths of their own are taken one by one
            self.vmap_method = op.vmap_method
        self.func = getattr(body, "rule", None) or op.func
        self.missing = getattr(body, "missing", None)
        self.linear = body.linear

    def __call__(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        if self.missing is not None:
            raise self.missing()
        if self.on_jax:
            arrays = as_jax(arrays)
        return self.body(*arrays, lead=lead)

    def for_worker(self, arrays: Sequence[Any]) -> Sequence[Any] | None:
        return arrays if self.body.travels else None

    def linearize(self, moving: tuple[bool, ...]) -> Linearization:
        """Which no rule gives: an error, where it is used."""
        skip = self.leading_inputs
        body = MissingSecondDerivative(self.body, moving[skip:], self.title)
        return Linearization(self, RuleCall(body, self.op, self.environment), skip=skip)

    def transposed(self, given: tuple[bool, ...]) -> Call:
        """The cotangents' call of this tangents' call."""
        return transposed(type(self)(self.body.transposed(given), self.op, self.environment))


class MissingSecondDerivative:
    """Stands for the derivative of a rule.

    Takes the rule's arrays, then the tangents of those that `moving` marks.
    """

    travels = True

    def __init__(self, base: Any, moving: tuple[bool, ...], title: str) -> None:
        self.base = base
        self.moving = moving
        self.title = title
        self.linear = sum(moving)

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return self.base.shapes(structs[: len(self.moving)])

    def missing(self) -> Exception:
        return no_second_derivative_error(self.title)

    def transposed(self, given: tuple[bool, ...]) -> Any:
        raise self.missing()


class RulePushforward:
    """The tangents of a body's inexact results.

    Takes the body's inputs, its results, then a tangent for each input that
    `moving` marks.

    Attributes:
        linear: how many of the arrays, at the end, the results are linear in.
        travels: whether it may run in another process.
    """

    travels = True

    def __init__(self, base: UserBody, moving: tuple[bool, ...], pull: MakePullback) -> None:
        self.base = base
        self.moving = moving
        self.pull = pull
        self.linear = sum(moving)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"pull": None}  # which belongs to the program

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(structs[: len(self.moving)]) if is_inexact(s)]

    def taken_apart(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], list[Any]]:
        """The inputs, the results, and a tangent or None for each input."""
        count = len(self.moving)
        outputs = arrays[count : len(arrays) - self.linear]
        rest = iter(arrays[len(arrays) - self.linear :])
        return arrays[:count], outputs, [next(rest) if moves else None for moves in self.moving]

    def transposed(self, given: tuple[bool, ...]) -> Any:
        """The same linear map the other way round."""
        return self.pull(given, self.moving)


class MissingJvp(RulePushforward):
    """Stands for the tangents where no rule gives them."""

    def missing(self) -> Exception:
        op = self.base.op
        return no_jvp_error(op.title, op.rules)


class JvpRule(RulePushforward):
    """The user's `jvp=` function."""

    @property
    def rule(self) -> Any:
        return self.base.op.rules.jvp

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        op = self.base.op
        inputs, outputs, tangents = self.taken_apart(arrays)
        found = called(op, "jvp", self.rule, tuple(inputs), tuple(outputs), tuple(tangents))
        found = one_each(found, len(outputs), "jvp", ("tangent", "result"), op.title)
        likes = [Struct((*lead, *o.shape[len(lead) :]), o.dtype) for o in outputs]
        return [checked(op, "jvp", k, found[k], like, "result") for k, like in enumerate(likes) if is_inexact(like)]


class RulePullback:
    """The cotangents of a body's inputs that `wanted` marks.

    Takes the body's inputs, perhaps its results, then the cotangents that `given` marks.
    """

    travels = True

    def __init__(self, base: UserBody, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> None:
        self.base = base
        self.given = given
        self.wanted = wanted
        self.linear = sum(given)

    @property
    def rule(self) -> Any:
        return self.base.op.rules.vjp

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, wants in zip(structs, self.wanted) if wants]

    def cotangents(self, rest: Sequence[Any], outputs: Sequence[Any], lead: tuple[int, ...]) -> tuple[Any, ...]:
        """One for each of the body's results."""
        it, given = iter(rest), iter(self.given)
        moves = [is_inexact(out) and next(given) for out in outputs]
        return tuple(next(it) if m else zero_cotangent(out, lead, self.base.op) for m, out in zip(moves, outputs))

    def read(self, found: Any, inputs: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        """What the rule returned, checked."""
        op = self.base.op
        name = op.rules.vjp_name
        found = one_each(found, len(inputs), name, ("cotangent", "array input"), op.title)
        likes = [Struct((*lead, *x.shape[len(lead) :]), x.dtype) for x in inputs]
        return [checked(op, name, k, found[k], like, "input") for k, like in enumerate(likes) if self.wanted[k]]


def zero_cotangent(out: Any, lead: tuple[int, ...], op: Op) -> Any:
    """The cotangent of a result that nobody uses, or that has none."""
    if not is_inexact(out):
        return np.zeros(out.shape, jax.dtypes.float0)
    shape = (*lead, *out.shape[len(lead) :])
    return jnp.zeros(shape, out.dtype) if op.on_jax else np.zeros(shape, out.dtype)


class VjpRule(RulePullback):
    """The user's `vjp=` function."""

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        op, count = self.base.op, len(self.wanted)
        inputs, outputs = arrays[:count], arrays[count : len(arrays) - self.linear]
        cotangents = self.cotangents(arrays[count + len(outputs) :], outputs, lead)
        results, cotangents = decode(op, outputs, outputs), decode(op, cotangents, outputs)
        found = called(op, "vjp", self.rule, tuple(inputs), results, cotangents)
        return self.read(found, inputs, lead)


# ------------------------------------------------------------------ rules' results


def called(op: Op, name: str, rule: Any, *args: Any) -> Any:
    """Call a user's rule, with advice on what it raises."""
    try:
        return rule(*args)
    except Exception as error:
        if (clearer := advise(error, op, name, rule, lambda: (args, {}))) is not None:
            raise clearer from error
        raise


def one_each(found: Any, count: int, name: str, of: tuple[str, str], title: str) -> Sequence[Any]:
    """What a rule returned, as one value for each of `count`.

    Raises:
        ValueError: more or fewer.
    """
    if count == 1 and not isinstance(found, (list, tuple)):
        return (found,)
    if not isinstance(found, (list, tuple)) or len(found) != count:
        got = f"{len(found)} {of[0]}s" if isinstance(found, (list, tuple)) else "a single value"
        raise ValueError(f"{title}: {name} returned {got} for {count} {of[1]}s; return one {of[0]} each, None for zero")
    return found


def checked(op: Op, name: str, k: int, value: Any, like: Struct, of: str) -> Any:
    """One of a rule's values, as an array of the shape and dtype that it must have."""
    if value is None:
        return np.zeros(like.shape, like.dtype)
    which = f"{name} returned, for {of} {k},"
    array = cast_to_numpy(value, Leaf(np.dtype(like.dtype)), op.casting, which, op.title)
    if array.shape != like.shape:
        what = "a cotangent has its input's shape" if of == "input" else "a tangent has its result's shape"
        raise ValueError(f"{op.title}: {which} shape {show_shape(array.shape)}; {what}, {show_shape(like.shape)}")
    return array
