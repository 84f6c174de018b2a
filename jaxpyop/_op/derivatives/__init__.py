"""Derivatives by the user's own rules: `vjp=`, `jvp=` and `transpose=`.

To read, in this order: `choose` (which rules make up a derivative), `functions` (`vjp=f` and `jvp=f`), `fwd_bwd`
(`vjp=(fwd, bwd)`), `residuals`, `numerical` (finite differences), `transpose` (`transpose=f`).
"""

from jaxpyop._op.derivatives.choose import linearize_by_rules
from jaxpyop._op.derivatives.transpose import LinearCall, LinearFunction
