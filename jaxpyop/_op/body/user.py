"""What runs on the host: an op's body, and the bodies of its derivatives.

A body maps a flat list of arrays to a flat list of arrays. The derivatives of
a body are bodies too, over its inputs and their tangents or its results'
cotangents, so that every order is built from the same pieces. Bodies are
compared by identity: each belongs to one place in a program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import run_there
from jaxpyop._op.body.advice import advise
from jaxpyop._op.body.shapes import inferred
from jaxpyop._op.request import Op
from jaxpyop._op.values import (
    Inputs,
    Leaf,
    ResultSpec,
    Struct,
    as_jax,
    cast_to_jax,
    cast_to_numpy,
    check_shape,
    encode,
    encoded_shapes,
    fill_shape,
    match,
    with_shapes,
)
from jaxpyop._paths import infer_shapes
from jaxpyop._tape import jvp, vjp

# ---------------------------------------------------------------------- bodies


def _is_numpy(value: Any) -> bool:
    return type(value) is np.ndarray or isinstance(value, np.generic)


def _as_struct(x: Any) -> Struct:
    return x if type(x) is Struct else Struct(x.shape, x.dtype)  # which takes longer than it looks


class UserBody:
    """The user's function between checked inputs and checked results."""

    def __init__(self, op: Op, inputs: Inputs) -> None:
        self.op = op
        self.inputs = inputs
        self.how = ""  # where shapes that were not promised come from
        self._shapes: dict[Any, list[Struct]] = {}
        self._asked_for: dict[Any, Sequence[Leaf]] = {}

    @property
    def title(self) -> str:
        """What the tape's warnings call it."""
        return self.op.title

    def __getstate__(self) -> dict[str, Any]:
        # For another process, which has no use for the executor; shapes are checked here.
        op = dataclasses.replace(self.op, executor=None, output_shapes=None)
        return {"op": op, "inputs": self.inputs, "how": "", "_shapes": {}, "_asked_for": {}}

    def _run(self, arrays: Sequence[Any]) -> Any:
        op, inputs = self.op, self.inputs
        if inputs.is_flat:
            return op.func(*arrays)
        if op.on_jax and any(impl is not None for impl in inputs.key_impls):
            arrays = inputs.wrap_keys(arrays)
        args, kwargs = inputs.unflatten(arrays)
        return op.func(*args, **kwargs)

    def _matched(self, value: Any) -> list[Any]:
        return match(self.op.spec.returned, value, self.op.title)

    def results(self, arrays: Sequence[Any]) -> list[Any]:
        """What the function returned, by the structure of `Tout`, unchecked."""
        return self._matched(self._run(arrays))

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        op = self.op
        try:
            values = self.results(arrays)
        except Exception as error:
            if (clearer := advise(error, op, "func", op.func, lambda: self.inputs.unflatten(arrays))) is not None:
                raise clearer from error
            raise
        if op.spec.returned_spec is not None:
            values = encode(op, values, self._converted, lead)
        else:
            values = [self._converted(k, value, leaf) for k, (value, leaf) in enumerate(zip(values, op.spec.leaves))]
        self.check_shapes(values, self.promised(arrays, lead), lead)
        return values

    def _converted(self, k: int, value: Any, leaf: Leaf) -> Any:
        op = self.op
        if op.on_jax:
            return cast_to_jax(value, leaf, op.casting, op.origin_of_result(k), op.title)
        if _is_numpy(value) and value.dtype == leaf.dtype:
            return value
        return cast_to_numpy(value, leaf, op.casting, op.origin_of_result(k), op.title)

    def check_shapes(self, values: Sequence[Any], leaves: Sequence[Leaf], lead: tuple[int, ...]) -> None:
        """Raise unless the results have the promised shapes, after the batch axes `lead`."""
        for k, (value, leaf) in enumerate(zip(values, leaves)):
            if leaf.shape is not None and value.shape != (*lead, *leaf.shape):
                check_shape(value.shape, leaf, lead, "declared", self.op.origin_of_array(k), self.op.title)

    def promised(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Leaf]:
        """What is known of the results for inputs with the batch axes `lead`."""
        if self.op.output_shapes is None:
            return self.op.spec.leaves
        key = tuple([(a.shape, a.dtype) for a in arrays]), len(lead)
        found = self._asked_for.get(key)
        if found is None:
            structs = [Struct(a.shape[len(lead) :], a.dtype) for a in arrays]
            found = self._asked_for[key] = self._asked(structs).leaves
        return found

    def _asked(self, structs: Sequence[Struct]) -> ResultSpec:
        op = self.op
        assert op.output_shapes is not None
        if op.on_jax:
            structs = self.inputs.key_structs(structs)
        args, kwargs = self.inputs.unflatten(structs)
        return with_shapes(op.spec, op.output_shapes(*args, **kwargs), op.title)

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The results' shapes and dtypes for inputs of these."""
        key = tuple([(s.shape, s.dtype) for s in structs])
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._resolve(list(map(_as_struct, structs)))
        return found

    def learn(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        """Take note of shapes that came back, where none are promised."""
        if not self._shapes:
            self._shapes[tuple((s.shape, s.dtype) for s in structs)] = list(results)

    def _resolve(self, structs: Sequence[Struct]) -> list[Struct]:
        op = self.op
        spec = op.spec if op.output_shapes is None else self._asked(structs)
        if all(leaf.shape_known for leaf in spec.leaves):
            return [Struct(leaf.shape, leaf.dtype) for leaf in spec.leaves]
        inferred, self.how = self._infer(structs)
        if inferred is not None and spec.returned_spec is not None:
            inferred = encoded_shapes(spec.returned.leaves, inferred)
        return [
            Struct(fill_shape(leaf, None if inferred is None else inferred[k], self.how, op.title), leaf.dtype)
            for k, leaf in enumerate(spec.leaves)
        ]

    def _abstract(self, structs: Sequence[Struct]) -> list[Struct]:
        with _jaxcore.without_axes():  # as the body will run
            return infer_shapes(lambda *arrays: self.results(arrays), structs)

    def _infer(self, structs: Sequence[Struct]) -> tuple[list[Any] | None, str]:
        op = self.op
        if op.on_jax and not op.stateful:
            found = inferred(op, self.inputs, structs, lambda: run_there(op, lambda: self._abstract(structs)))
            if found is not None:
                return found, "the shape that func has in the abstract"
            # values decide: assume what elementwise functions do
        logical = [s.shape if impl is None else s.shape[:-1] for s, impl in zip(structs, self.inputs.key_impls)]
        try:
            shape = np.broadcast_shapes(*logical)
        except ValueError:
            return None, "the inputs' shapes do not broadcast"
        return [shape] * len(op.spec.returned.leaves), "the inputs' broadcast shape"


class Pushforward:
    """The tangents of a body's inexact results, forward mode.

    Takes the body's inputs, then a tangent for each input that `moving` marks.
    """

    def __init__(self, base: Any, moving: tuple[bool, ...]) -> None:
        self.base = base
        self.moving = moving

    @property
    def title(self) -> str:
        return self.base.title

    def __call__(self, *arrays: Any) -> list[Any]:
        primals, tangents = self._take(arrays)
        outs, found = jvp(self.base, primals, tangents)
        return self._give(outs, found)

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        """The same from the record of the body's run."""
        primals, tangents = self._take(arrays)
        return self._give(self.base.shapes(primals), record.pushforward(as_jax(tangents)))

    def _take(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        count = len(self.moving)
        rest = iter(arrays[count:])
        return arrays[:count], [next(rest) if moves else None for moves in self.moving]

    def _give(self, outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        return [_or_zeros(t, out) for out, t in zip(outs, tangents) if _jaxcore.is_inexact(out)]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(structs[: len(self.moving)]) if _jaxcore.is_inexact(s)]

    def transposed(self, given: tuple[bool, ...]) -> Pullback:
        """The same linear map the other way round."""
        return Pullback(self.base, given, self.moving)


class Pullback:
    """The cotangents of a body's inputs, reverse mode.

    Takes the body's inputs, then a cotangent for each inexact result that
    `given` marks; returns one for each input that `wanted` marks.
    """

    def __init__(self, base: Any, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> None:
        self.base = base
        self.given = given
        self.wanted = wanted

    @property
    def title(self) -> str:
        return self.base.title

    def __call__(self, *arrays: Any) -> list[Any]:
        primals = arrays[: len(self.wanted)]
        return self._give(primals, vjp(self.base, primals, self._cotangents(arrays, primals), self.wanted))

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        """The same from the record of the body's run."""
        primals = arrays[: len(self.wanted)]
        return self._give(arrays, record.pullback(as_jax(self._cotangents(arrays, primals))))

    def _cotangents(self, arrays: Sequence[Any], primals: Sequence[Any]) -> list[Any]:
        rest, given = iter(arrays[len(self.wanted) :]), iter(self.given)
        outs = self.base.shapes(primals)
        return [next(rest) if _jaxcore.is_inexact(out) and next(given) else None for out in outs]

    def _give(self, primals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return [_or_zeros(c, p) for p, c, wants in zip(primals, cotangents, self.wanted) if wants]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, wants in zip(structs, self.wanted) if wants]


def _or_zeros(value: Any, like: Any) -> Any:
    return np.zeros(like.shape, like.dtype) if value is None else value  # not on the device, where it takes longer
