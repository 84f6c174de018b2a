"""Derivatives by the user's own rules: `vjp=`, `jvp=` and `transpose=`.

Reading order: `choose` (which rules make up a derivative), `functions` (`vjp=f` and `jvp=f`), `fwd_bwd`
(`vjp=(fwd, bwd)`) with `residuals` and `element_axes`, `numerical` (finite differences of the function), `second`
(finite differences of a rule), `transpose` (`transpose=f`).
"""

from jaxpyop._op.derivatives.choose import linearize_by_rules
from jaxpyop._op.derivatives.transpose import LinearCall, LinearFunction
