"""Derivatives by the user's own rules: `vjp=`, `jvp=` and `transpose=`.

Reading order: `functions` (`vjp=f` and `jvp=f`), `residuals` (`vjp=(fwd, bwd)`), `numerical` (finite differences of the
function), `transpose` (`transpose=f`). `UserCall.linearize_by_rules` decides which of them make up a derivative.
"""

from jaxpyop._op.derivatives.functions import JvpRule, MakePullback, MissingTangents, RuleCall, VjpRule, raising
from jaxpyop._op.derivatives.numerical import NumericalJvp, NumericalVjp
from jaxpyop._op.derivatives.residuals import BwdRule, FwdCall, ResidualRuleCall
from jaxpyop._op.derivatives.transpose import LinearCall, LinearFunction
