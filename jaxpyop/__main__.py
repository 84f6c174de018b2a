"""The command line: ``python -m jaxpyop demo`` and ``doctor``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import jaxpyop
from jaxpyop._cli import run_demo, run_doctor


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after ``python -m jaxpyop``; by default the process's own.

    Returns:
        The exit code: 1 if the demo printed a wrong value, otherwise 0.
    """
    description = "Python functions as ops in JAX programs. Without a command, runs the demo."
    parser = argparse.ArgumentParser(prog="python -m jaxpyop", description=description)
    parser.add_argument("--version", action="version", version=f"jaxpyop {jaxpyop.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("demo", help="show what the ops do, and check values, gradients and an error")
    commands.add_parser("doctor", help="report versions, devices, settings and hazards")
    return run_doctor() if parser.parse_args(argv).command == "doctor" else run_demo()


if __name__ == "__main__":
    try:
        status: int = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output has read enough, as `head -1` has. A usual exit would try to write the rest.
        os._exit(1)
    sys.exit(status)
