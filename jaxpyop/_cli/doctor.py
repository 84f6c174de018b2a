"""Reports versions, devices, settings, and how calls reach the host here: the facts that a bug report needs."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Iterator

import jax
import jaxlib
import numpy as np

import jaxpyop
from jaxpyop import _jaxcore
from jaxpyop._config import config
from jaxpyop._host import SCRATCH, verdict
from jaxpyop._op import RECORDS

_WIDTH = 100


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


def _transport() -> Iterator[tuple[str, str]]:
    stateless, stateful, ordered = "pure_callback", "io_callback", "io_callback"
    if config.transport == "auto" and jax.default_backend() == "cpu" and not _jaxcore.PORTABLE:
        stateless, stateful = "buffer_callback (zero-copy)", "buffer_callback"
        if jax.device_count() == 1:
            ordered = "buffer_callback, with a token"
        else:
            stateful = "buffer_callback on one device, io_callback over several"
    yield "transport", f"{config.transport}: {stateless}"
    yield "  stateful ops", stateful
    yield "  ordered ops", ordered
    yield "  outside jit", "func is called directly"


def _safety() -> Iterator[tuple[str, str]]:
    yield "JAX in bodies", f"safe? {verdict()}"
    yield "  NPROC", os.environ.get("NPROC", "not set")
    asynchronous = jax.config.read("jax_cpu_enable_async_dispatch")
    yield "  CPU dispatch", "asynchronous" if asynchronous else "synchronous, which JAX in bodies needs before 0.12"


def _kept() -> Iterator[tuple[str, str]]:
    stats = RECORDS.stats()
    most = "no bound by number" if config.max_records is None else f"at most {config.max_records}"
    yield "gradient records", f"{stats['count']} kept ({most}), {stats['evicted']} evicted"
    yield "  bytes", f"{stats['nbytes']} (at most {config.max_record_bytes})"
    yield "scratch arrays", f"{SCRATCH.nbytes} bytes kept for the next calls (at most {config.max_scratch_bytes})"


def _settings() -> Iterator[tuple[str, str]]:
    yield "settings", ""
    for name, value in vars(config).items():
        variable = f"JAXPYOP_{name.upper()}"
        source = f"= {os.environ[variable]!r}" if variable in os.environ else "not set"
        yield f"  {name}", f"{value!s:<12} environment variable {variable} ({source})"


def _private_names() -> Iterator[tuple[str, str]]:
    if not _jaxcore.PORTABLE:
        yield "portable", "no: this JAX has all that jaxpyop uses of it"
        return
    yield "portable", f"yes, on public JAX alone: {_jaxcore.WHY_PORTABLE}"
    for loss in _jaxcore.LOSSES:
        yield "", f"- {loss}"


def _line(name: str, value: str) -> str:
    # The label is the initial indent, for fill() would strip the spaces that a label starts with.
    return textwrap.fill(value, _WIDTH, initial_indent=f"{name:<23}", subsequent_indent=" " * 23) if value else name


def report() -> str:
    """The text that `doctor` prints. Asking for the devices starts JAX, unless it runs already."""
    sections = (_versions, _devices, _transport, _safety, _kept, _settings, _private_names)
    return "\n".join(_line(name, value) for section in sections for name, value in section())


def main() -> int:
    """Print the report and return the exit code, which is always 0."""
    print(report())
    return 0
