"""Derivatives by the user's own rules: `vjp=`, `jvp=` and `transpose=`.

Reading order: `functions` (`vjp=f`, `jvp=f` and `transpose=f`), `residuals` (`vjp=(fwd, bwd)`), `numerical` (finite
differences of the function), `choose` (which rules make up a derivative, and the call that runs one).
"""

from jaxpyop._op.user_rules.choose import linearize_by_rules
from jaxpyop._op.user_rules.functions import LinearCall, LinearFunction
from jaxpyop._op.user_rules.residuals import FwdCall
