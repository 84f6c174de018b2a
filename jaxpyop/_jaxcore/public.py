"""The names of JAX without which the package cannot work, and the switch between all of JAX and public JAX alone.

The package also uses names below JAX's public surface: `private` has all of them. If one is missing in a new JAX, or
does something else there, the whole package runs portable, which means on public JAX alone: with callbacks in place of
lent buffers, and with `jax.vjp` in place of the tape. There is no state between the two.
"""

from __future__ import annotations

import os
import pkgutil
import warnings
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
)


def _required(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        raise ImportError(
            f"jaxpyop cannot work with JAX {jax.__version__}, which has no {name}. It was tested with JAX {TESTED}: "
            "install one of these, or a newer jaxpyop"
        ) from None


Trace, Tracer, *_others = map(_required, REQUIRED)

# Classes that are taken from their instances. ShapedArray has no public name. Primitive has one in `jax.extend`, which
# also imports Pallas, and that takes half of the time of our import.
ShapedArray: Any = type(jax.typeof(0.0))
Primitive: Any = type(jax.lax.neg_p)
LAX_PRIMITIVES = frozenset(value for value in vars(jax.lax).values() if isinstance(value, Primitive))

JAX_VERSION = jax.__version_info__[:2]

# ------------------------------------------------------------------ the switch


def _find_private() -> tuple[Any, str]:
    """Returns the module `private` and "", or None and why it cannot be used."""
    if os.environ.get("JAXPYOP_PORTABLE", "0") not in ("", "0"):
        return None, "the environment variable JAXPYOP_PORTABLE asks for it"
    try:
        from jaxpyop._jaxcore import private as found
    except Exception as error:
        # A future JAX may raise anything. The text of an ImportError ends with the path of a file in brackets.
        return None, str(error).partition(" (")[0]
    return found, ""


# Everything that reads `private` is behind a test of PORTABLE.
private, WHY_PORTABLE = _find_private()
# Whether the package does without all names below JAX's public surface.
PORTABLE = private is None

LOSSES = (
    "gradients of py_function come from jax.vjp, so a differentiated function that calls float(x) or NumPy raises",
    "under jax.checkpoint, a function runs again for the backward pass, with other random numbers if it draws some",
    "mode='traced' is refused",
    "jaxpyop.jit is jax.jit, and jaxpyop.export and jaxpyop.load are refused",
    "compiled programs copy what functions read and return, and direct calls are slower",
    "programs over several devices are refused, except in jax.shard_map",
    "a vmap of a cond with a stateful op is refused",
    "the derivative of a loop may run a stateful op once if its inputs are the same in each iteration, and not at all "
    "if its results are not used",
    "outside jit, a tangent that cannot be computed raises in every operation that receives it",
    "a function in the combiner of jax.lax.reduce ends the process, because XLA cannot call Python there",
    "errors and source lines show files of jaxpyop, and errors about effects do not name the op",
)


def warn_if_portable() -> None:
    """Warns, when jaxpyop is imported, if this JAX lacks something. Who set JAXPYOP_PORTABLE knows it."""
    if not PORTABLE or "JAXPYOP_PORTABLE" in WHY_PORTABLE:
        return
    warnings.warn(
        f"JAX {jax.__version__} does not have all that jaxpyop uses of it ({WHY_PORTABLE}). So jaxpyop runs "
        f"portable, on the public functions of JAX alone: {'; '.join(LOSSES)}. A newer jaxpyop may not need it, and "
        f"JAX {TESTED} has it",
        RuntimeWarning,
        stacklevel=3,
    )
