"""Looks up names of JAX below its documented surface, and lists the few without which the package cannot work.

This is the only module that looks up such names. They are given as strings, so that a test can remove each of them.
"""

from __future__ import annotations

import contextlib
import importlib
import types
from typing import Any

import jax

# The versions of JAX that the tests run on.
TESTED = "0.10.0 to 0.12"
_NEWEST_TESTED = (0, 12)

# The names that the package needs to define a primitive with a rule for each of JAX's transformations.
REQUIRED = (
    "jax.core.Trace",
    "jax.core.Tracer",
    "jax.extend.core.Primitive",
    "jax.interpreters.ad.Zero",
    "jax.interpreters.ad.instantiate_zeros",
    "jax.interpreters.ad.is_undefined_primal",
    "jax.interpreters.ad.primitive_jvps",
    "jax.interpreters.ad.primitive_transposes",
    "jax.interpreters.batching.primitive_batchers",
    "jax.interpreters.mlir.lower_fun",
    "jax.interpreters.mlir.register_lowering",
)


def _version() -> tuple[int, ...]:
    # A release candidate is called 1.0rc1, and a development version 0.13.0.dev20270101.
    parts = ("".join(c if c.isdigit() else " " for c in part).split() for part in jax.__version__.split(".")[:2])
    return tuple(int(part[0]) if part else 0 for part in parts)


JAX_VERSION = _version()
IS_NEWER_THAN_TESTED = JAX_VERSION > _NEWEST_TESTED


def look_up(name: str) -> Any:
    """Returns the object with this dotted name.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    # Importing jax.extend also imports Pallas, which would take half of the time of our import. The modules in jax._src
    # from which jax.extend takes its names are imported already.
    if name.startswith("jax.extend."):
        with contextlib.suppress(ImportError, AttributeError):
            return _look_up(name.replace("jax.extend.", "jax._src."))
    return _look_up(name)


def _look_up(name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(owner)
    except ImportError:
        # The owner need not be a module of this path: it may be a class, or a module that was imported under this name.
        module = _look_up(owner)
    return getattr(module, attribute)


def _required(name: str) -> Any:
    try:
        return look_up(name)
    except (ImportError, AttributeError):
        raise ImportError(
            f"jaxpyop cannot work with JAX {jax.__version__}, which has no {name}. It was tested with JAX {TESTED}: "
            "install one of these, or a newer jaxpyop"
        ) from None


def _namespace(module: str) -> Any:
    """Returns a namespace with the required names of a module, and no others."""
    names = [name for name in REQUIRED if name.startswith(module + ".")]
    return types.SimpleNamespace(**{name.rpartition(".")[2]: _required(name) for name in names})


# On JAX 0.12 a Trace cannot be subscripted.
Trace = _required("jax.core.Trace")
Tracer = _required("jax.core.Tracer")
Primitive = _required("jax.extend.core.Primitive")
ad, batching, mlir = map(_namespace, ("jax.interpreters.ad", "jax.interpreters.batching", "jax.interpreters.mlir"))

# The class itself has no public name, but `jax.typeof` returns an instance of it.
ShapedArray: Any = type(jax.typeof(0.0))
