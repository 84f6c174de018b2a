"""`vjp=(fwd, bwd)`: residuals that stay on the host.

`fwd` runs in place of the function. Its residuals go into the store of records, and only a receipt for them goes
through the program. Residuals may be any object, such as an LU factorisation or an open solver. They are never sent to
another process. A program may slice, reverse or mix the receipts of a batch like any array, so that each element has
residuals of its own, and `fwd` and `bwd` run once for each.

Reading order: what is kept, how `fwd` runs, the body of `bwd`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpyop._op.body import DerivativeBody, UserBody, call_with_advice, element_structs
from jaxpyop._op.primitive import FINGERPRINT_WORD
from jaxpyop._op.user_rules.vjp_and_jvp import cotangents_of_inputs, cotangents_of_results, in_structure
from jaxpyop._refusal import refusal
from jaxpyop._values import as_jax, check_fingerprints, decode, fingerprint, with_own_containers

# ------------------------------------------------------------------- residuals


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """The residuals of one run of `fwd`, as a record.

    Attributes:
        value: any object.
        nbytes: an estimate of the memory that the object takes.
    """

    value: Any
    nbytes: int


# ------------------------------------------------------------------------- fwd


def run_fwd(base: UserBody, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
    """Run `fwd` in place of the function `base`, return the results and the residuals, and raise what it raises."""
    op = dataclasses.replace(base.op, func=base.op.rules.fwd, title=f"{base.title}, fwd of vjp")
    fwd = UserBody(op, base.inputs)
    found = fwd.returned(arrays)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        kind = f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, (tuple, list)) else "")
        raise refusal(ValueError(f"{op.title}: fwd returned {kind}; return a pair, (outputs, residuals)"))
    return fwd.results_of(found[0], arrays), found[1]


# ------------------------------------------------------------------------- bwd


class BwdRule(DerivativeBody):
    """The user's `bwd`."""

    rule_name = "vjp"
    reads_kept = True

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = (), *, traced: bool = False) -> list[Any]:
        raise NotImplementedError("a bwd answers from residuals")

    def answer(self, kept: Residuals | None, receipt: Any, arrays: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the inputs.

        Args:
            kept: the residuals, or None if they are gone. Then `fwd` runs again, and must give the same results.
            receipt: the receipt of the run.
            arrays: the inputs, the results if they are padded, and the cotangents.
        """
        if self.op.on_jax:
            arrays = as_jax(arrays)
        inputs, outputs, cotangents = self.split(arrays)
        if kept is None:
            # `fwd` may change its inputs.
            copies = inputs if self.op.on_jax else [np.array(a, order="C") for a in inputs]
            outs, residuals = run_fwd(self.base, copies)
            check_fingerprints(fingerprint(outs), int(receipt[FINGERPRINT_WORD]), self.title, "fwd of vjp")
        else:
            # `bwd` may run again, as in `jax.jacrev`.
            residuals = with_own_containers(kept.value)
        structs = self.base.shapes(element_structs(inputs))
        given: Any = cotangents_of_results(self, cotangents, structs, ())
        if self.op.spec.returned_spec is not None:
            # The lengths of padded results are among the results. Cotangents are cut to the same lengths.
            given = decode(self.op, given, outputs)
        found = call_with_advice(self.op, "bwd of vjp", self.func, (residuals, in_structure(self.op, given)), {})
        return cotangents_of_inputs(self.base, "bwd of vjp", found, element_structs(inputs), self.perturbed)
