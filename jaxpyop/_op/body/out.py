"""`out=True`: a body whose function fills the op's results instead of returning its own.

If a program runs the function in this process, the arrays to fill come after the inputs: rows or blocks of XLA's own
memory. In a direct call, in another process and for a derivative no such arrays come, and they are made here. They
are zero at first, and the function may use them during the call only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._host import lend_results, take_back_results
from jaxpyop._op.body.advice import call_with_advice
from jaxpyop._op.body.body_protocol import Body
from jaxpyop._op.body.failed import failed_results, kept_for_failure
from jaxpyop._op.body.user import UserBody
from jaxpyop._op.values import Struct, kind_of


class FilledBody(UserBody):
    """The user's function, which fills arrays. They are the results, unless they are in XLA's memory already."""

    def __getstate__(self) -> dict[str, Any]:
        # A worker makes the arrays, so it needs their shapes.
        return super().__getstate__() | {"_shapes": self._shapes}

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return super().shapes(structs[: len(self.inputs.key_impls)])

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        count = len(self.inputs.key_impls)
        arrays, targets = arrays[:count], arrays[count:]
        for array in targets:
            # Otherwise the function would see the values of another program.
            array.fill(0)
        made = [] if targets else Body.absent_results(self, arrays, lead)
        kept = [*kept_for_failure(self, arrays, lead), *targets] if lead else [*arrays, *targets]
        try:
            self._fill(arrays, targets or made)
        except Exception as error:
            if self.op.failures is None:
                raise
            return failed_results(self, error, kept, lead)
        return made

    def fills(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        count = len(self.inputs.key_impls)
        found, targets = super().fills(arrays[:count], lead), arrays[count:]
        for array, value in zip(targets, found):
            array[...] = value
        return [] if targets else found

    def _fill(self, arrays: Sequence[Any], targets: Sequence[np.ndarray[Any, Any]]) -> None:
        lent = lend_results(targets)
        try:
            self._call(arrays, lent)
        finally:
            # This also covers an array that only a traceback holds.
            kept = take_back_results(lent)
        if kept:
            warnings.warn(
                f"{self.op.title}: func kept out, which out=True lends for the call only; what is written to it from "
                "now on goes nowhere, and a slice of it is undefined: keep a copy",
                RuntimeWarning,
                stacklevel=2,
            )

    def _call(self, arrays: Sequence[Any], lent: Sequence[Any]) -> None:
        # A function of its own, so that no variable of `_fill` refers to the lent arrays.
        tree = self.op.spec.tree
        args, kwargs = self.inputs.unflatten(arrays)
        kwargs = {**kwargs, "out": lent[0] if tree is None else jax.tree.unflatten(tree, lent)}
        value = call_with_advice(self.op, "func", self.op.func, args, kwargs)
        if value is None:
            return
        found = jax.tree.leaves(value)
        if len(found) != len(lent) or not all(a is b for a, b in zip(found, lent)):
            raise ValueError(
                f"{self.op.title}: func returned {kind_of(value)}, and out=True takes what it writes into out: write "
                "out[...] = value and return nothing, or leave out=True out"
            )
