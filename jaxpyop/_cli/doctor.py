"""Reports versions, devices, hazards and settings: the facts that a bug report needs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import jax
import jaxlib
import numpy as np

import jaxpyop
from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._host import verdict
from jaxpyop._native import state as native_state


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} ({platform.system()}, {platform.machine()})"
    yield "jax, jaxlib", f"{jax.__version__}, {jaxlib.__version__} (tested: {_jaxcore.TESTED})"
    yield "numpy", np.__version__
    yield "jaxpyop", jaxpyop.__version__


def _devices() -> Iterator[tuple[str, str]]:
    devices = jax.devices()
    yield "backend", jax.default_backend()
    yield "devices", f"{len(devices)}: {', '.join(map(str, devices[:4]))}{', ...' if len(devices) > 4 else ''}"
    x64 = bool(jax.config.read("jax_enable_x64"))
    yield "x64", "on" if x64 else "off (64-bit dtypes become 32-bit ones)"


def _safety() -> Iterator[tuple[str, str]]:
    yield "JAX in bodies", f"safe? {verdict()}"
    yield "  NPROC", os.environ.get("NPROC", "not set")
    asynchronous = jax.config.read("jax_cpu_enable_async_dispatch")
    yield "  CPU dispatch", "asynchronous" if asynchronous else "synchronous, which JAX in bodies needs before 0.12"


def _native_calls() -> Iterator[tuple[str, str]]:
    yield "native calls", native_state()


def _settings() -> Iterator[tuple[str, str]]:
    yield "settings", ""
    for name, value in vars(config).items():
        variable = f"JAXPYOP_{name.upper()}"
        source = f"= {os.environ[variable]!r}" if variable in os.environ else "not set"
        yield f"  {name}", f"{value!s:<12} environment variable {variable} ({source})"


def _private_names() -> Iterator[tuple[str, str]]:
    lacking = [feature for feature in _jaxcore.FEATURES if _jaxcore.why_without(feature)]
    yield "names of JAX", "all that jaxpyop uses are there" if not lacking else "some that jaxpyop uses are missing"
    for feature in lacking:
        yield f"  {feature}", f"{_jaxcore.FEATURES[feature].without} ({_jaxcore.why_without(feature)})"


def _changes() -> Iterator[tuple[str, str]]:
    yield "changes to JAX", "made by the first op that needs them"
    for name, change in _jaxcore.CHANGES.items():
        yield f"  {name}", f"{'made' if _jaxcore.is_made(name) else 'not made'}: {change.what}; by {change.by}"


def report() -> str:
    """The text that `doctor` prints. Asking for the devices starts JAX, unless it runs already."""
    sections = (_versions, _devices, _safety, _native_calls, _settings, _private_names, _changes)
    return "\n".join(f"{name:<23}{value}" for section in sections for name, value in section())


def main() -> int:
    """Print the report and return the exit code, which is always 0."""
    print(report())
    return 0
