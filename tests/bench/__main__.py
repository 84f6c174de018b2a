"""Measures the speed on this machine, beside JAX's own callbacks and other frameworks.

    python -m tests.bench [SUBJECT ...] [--json]
    python -m tests.bench [SUBJECT ...] --against CHECKOUT [--rounds N]

Without a subject, all are measured but `executors`, which takes minutes. The second form compares the
jaxpyop of this checkout with that of another one.
"""

import argparse
import pathlib
import sys

from tests.bench import against, measure
from tests.bench.cases import QUICK, SUBJECTS


def main(argv=None):
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measures the speed on this machine.")
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"any of {', '.join(SUBJECTS)}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--against", type=pathlib.Path, metavar="CHECKOUT", help="compare with another checkout")
    parser.add_argument("--rounds", type=int, default=5, help="how often each checkout runs (default: 5)")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(SUBJECTS)}")
    subjects = arguments.subjects or QUICK
    if arguments.against:
        return against.main(arguments.against, subjects, arguments.rounds)
    return measure.main(subjects, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
