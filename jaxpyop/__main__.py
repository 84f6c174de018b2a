"""``python -m jaxpyop demo``, ``doctor`` and ``bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxpyop._cli import run_bench, run_demo, run_doctor


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxpyop", description="Python functions as ops in JAX programs. Without a command: demo."
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("demo", help="run every example on real input, print and check values and gradients")
    commands.add_parser("doctor", help="print versions, devices, transport, settings, and what is safe here")
    bench = commands.add_parser("bench", help="measure how fast this is here, beside JAX's own callbacks")
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
    bench.add_argument("--long", action="store_true", help="with what takes minutes: runs of thousands of steps")
    parser.set_defaults(command="demo")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: what follows ``python -m jaxpyop``; by default the process's own.

    Returns:
        The exit code: 0, or 1 when the demo printed a wrong value.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command == "bench":
        return run_bench(as_json=arguments.json, long=arguments.long)
    return run_doctor() if arguments.command == "doctor" else run_demo()


if __name__ == "__main__":
    sys.exit(main())
