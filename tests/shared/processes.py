"""Programs in processes of their own, each with a timeout: deadlocks, exits, several devices, other settings."""

from __future__ import annotations

import os
import subprocess
import sys

import jaxpyop

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(jaxpyop.__file__)))


def on_devices(count: int) -> dict[str, str]:
    """The environment of a process with so many CPU devices."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def run_python(code: str, timeout: float = 100, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; hanging or failing is an error with its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAXPYOP_", "XLA_FLAGS", "NPROC", "JAX_"))}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, clean.get("PYTHONPATH")]))
    clean |= {"JAX_PLATFORMS": "cpu", **env}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check:
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done
