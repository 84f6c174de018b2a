"""The names of JAX without which the package cannot work.

The package also uses names that may go missing: `private` has all of them, and says what each of them is needed for.
"""

from __future__ import annotations

import pkgutil
from typing import Any

import jax
from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir

# The versions of JAX that the tests run on.
TESTED = "0.10.0 to 0.12"

# What JAX documents for writing a primitive with a rule for each of its transformations.
REQUIRED = (
    "jax.core.Trace",
    "jax.core.Tracer",
    "jax.interpreters.ad.Zero",
    "jax.interpreters.ad.instantiate_zeros",
    "jax.interpreters.ad.is_undefined_primal",
    "jax.interpreters.ad.primitive_jvps",
    "jax.interpreters.ad.primitive_transposes",
    "jax.interpreters.batching.primitive_batchers",
    "jax.interpreters.mlir.lower_fun",
    "jax.interpreters.mlir.register_lowering",
    # Without our rules in these tables, a function that draws random numbers would run a second time in the backward
    # pass, and a stateful op in the derivative of a loop once in all.
    "jax.interpreters.partial_eval.custom_partial_eval_rules",
    "jax.interpreters.partial_eval.partial_eval_jaxpr_custom_rules",
)


def _required(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        raise ImportError(
            f"jaxpyop cannot work with JAX {jax.__version__}, which has no {name}. It was tested with JAX {TESTED}: "
            "install one of these, or a newer jaxpyop"
        ) from None


Trace, Tracer, *_others, custom_partial_eval_rules, rules_of_checkpoint = map(_required, REQUIRED)

# Classes that are taken from their instances. ShapedArray has no public name before JAX 0.10.2. Primitive has one in
# `jax.extend`, which also imports Pallas.
ShapedArray: Any = type(jax.typeof(0.0))
Primitive: Any = type(jax.lax.neg_p)
LAX_PRIMITIVES = frozenset(value for value in vars(jax.lax).values() if isinstance(value, Primitive))

JAX_VERSION = jax.__version_info__[:2]
