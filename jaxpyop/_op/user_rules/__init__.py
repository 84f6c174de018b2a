"""Derivatives by the user's own rules: `vjp=`, `jvp=` and `transpose=`.

Reading order: `vjp_and_jvp` (what `vjp=f` and `jvp=f` are given, and what they return), `linear` (`transpose=f`),
`residuals` (`vjp=(fwd, bwd)`), `numerical` (finite differences of the function), `choose` (which rules make up a
derivative, and the calls that run them).
"""

from jaxpyop._op.user_rules.choose import linearize_by_rules
