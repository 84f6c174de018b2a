"""Programs in processes of their own, each with a timeout: deadlocks, exits, several devices, other settings."""

import os
import subprocess
import sys

import jaxpyop

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(jaxpyop.__file__)))


def on_devices(count: int) -> dict[str, str]:
    """The environment of a process with so many CPU devices."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def clean_environment() -> dict[str, str]:
    """The environment of a new process, which imports this jaxpyop and has no settings of JAX or jaxpyop."""
    settings = ("JAXPYOP_", "XLA_FLAGS", "NPROC", "JAX_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    path = os.pathsep.join(filter(None, [ROOT, kept.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


def run_python(code: str, timeout: float = 200, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; hanging or failing is an error with its output."""
    env = clean_environment() | env
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check:
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done
