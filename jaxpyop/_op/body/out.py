"""`out=True`: a function that fills the op's results instead of returning its own.

The arrays to fill come behind the inputs: rows or blocks of XLA's own memory, where a program runs the function in this
process. Where none come, as in a direct call, in another process or for a derivative, they are made here. They are
zero at first, and the function's for the call only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._host import lend_results, take_back_results
from jaxpyop._op.body.advice import advise
from jaxpyop._op.body.user import Struct, UserBody
from jaxpyop._op.values import kind_of


class FilledBody(UserBody):
    """The user's function, which fills arrays; its results are those, or none where they are in place already."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_shapes": self._shapes}  # a worker makes the arrays

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return super().shapes(structs[: len(self.inputs.key_impls)])

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        count = len(self.inputs.key_impls)
        given, arrays = arrays[count:], arrays[:count]
        if given:
            for array in given:
                array.fill(0)  # what was there before is another program's
            self._fill(arrays, given)
            return []
        structs = self.shapes([Struct(a.shape[len(lead) :], a.dtype) for a in arrays])
        made = [np.zeros((*lead, *s.shape), s.dtype) for s in structs]
        self._fill(arrays, made)
        return made

    def _fill(self, arrays: Sequence[Any], targets: Sequence[np.ndarray[Any, Any]]) -> None:
        lent = lend_results(targets)
        try:
            self._call(arrays, lent)
        finally:
            kept = take_back_results(lent)  # also what a traceback has
        if kept:
            warnings.warn(
                f"{self.op.title}: func kept out, which out=True lends for the call only; what is written to it from "
                "now on goes nowhere, and a slice of it is undefined: keep a copy",
                RuntimeWarning,
                stacklevel=2,
            )

    def _call(self, arrays: Sequence[Any], lent: Sequence[Any]) -> None:
        op = self.op
        tree = op.spec.tree
        args, kwargs = self.inputs.unflatten(arrays)
        kwargs = {**kwargs, "out": lent[0] if tree is None else jax.tree.unflatten(tree, lent)}
        try:
            value = op.func(*args, **kwargs)
        except Exception as error:
            if (clearer := advise(error, op, "func", op.func, lambda: (args, kwargs))) is not None:
                raise clearer from error
            raise
        self._check_returned(value, lent)

    def _check_returned(self, value: Any, lent: Sequence[Any]) -> None:
        if value is None:
            return
        found = jax.tree.leaves(value)
        if len(found) != len(lent) or not all(a is b for a, b in zip(found, lent)):
            raise ValueError(
                f"{self.op.title}: func returned {kind_of(value)}, and out=True takes what it writes into out: write "
                "out[...] = value and return nothing, or leave out=True out"
            )
