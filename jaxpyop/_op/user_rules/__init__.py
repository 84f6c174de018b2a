"""Derivatives by the user's own rules: `vjp=`, `jvp=` and `transpose=`.

Reading order: `choose` (which rules make up a derivative), `functions` (`vjp=f` and `jvp=f`), `residuals`
(`vjp=(fwd, bwd)`), `numerical` (finite differences of the function), `transpose` (`transpose=f`).
"""

from jaxpyop._op.user_rules.choose import linearize_by_rules, pullback_by_rules
from jaxpyop._op.user_rules.residuals import FwdCall
from jaxpyop._op.user_rules.transpose import LinearCall, LinearFunction
