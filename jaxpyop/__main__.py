"""The command line: ``python -m jaxpyop demo``, ``doctor`` and ``bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import jaxpyop
from jaxpyop._cli import run_bench, run_demo, run_doctor


def _parser() -> argparse.ArgumentParser:
    description = "Python functions as ops in JAX programs. Without a command, runs the demo."
    parser = argparse.ArgumentParser(prog="python -m jaxpyop", description=description)
    parser.add_argument("--version", action="version", version=f"jaxpyop {jaxpyop.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("demo", help="run every function on real input, and check values and gradients")
    commands.add_parser("doctor", help="report versions, devices, settings and hazards")
    bench = commands.add_parser("bench", help="measure the speed on this machine, beside JAX's own callbacks")
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
    bench.add_argument("--long", action="store_true", help="also run thousands of steps, which takes minutes")
    parser.set_defaults(command="demo")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after ``python -m jaxpyop``; by default the process's own.

    Returns:
        The exit code: 1 if the demo printed a wrong value, otherwise 0.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command == "bench":
        return run_bench(as_json=arguments.json, long=arguments.long)
    return run_doctor() if arguments.command == "doctor" else run_demo()


if __name__ == "__main__":
    sys.exit(main())
