"""JAX's own tests, as they are and with jaxpyop in their process: no result may change.

    python -m tests.peers.jax_own_tests CHECKOUT [FILE ...]

CHECKOUT is a checkout of JAX at the version that is installed here, of which only the folder `tests` is read. Its tests
need the package absl-py. Each file runs twice: alone, and after jaxpyop was imported and one op of each kind was used,
so that every change that the package makes to JAX's tables is made. It takes some minutes, and is not among the tests.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from tests.shared.processes import ROOT, clean_environment

FILES = (
    "python_callback_test.py",
    "debugging_primitives_test.py",
    "buffer_callback_test.py",
    "lax_control_flow_test.py",
)


def outcomes(file, *options):
    """What pytest says of each test of a file: "passed", or how it failed."""
    with tempfile.TemporaryDirectory() as folder:
        # In a folder of its own, where the installed JAX is imported, and not the checkout.
        copy, report = pathlib.Path(folder, file.name), pathlib.Path(folder, "report.xml")
        copy.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        env = clean_environment() | {"JAX_NUM_GENERATED_CASES": "3", "JAX_SKIP_SLOW_TESTS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        subprocess.run([*command, copy.name], cwd=folder, env=env, capture_output=True, timeout=3000, check=False)
        cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
        return {
            f"{case.get('classname')}.{case.get('name')}": ",".join(sorted(child.tag for child in case)) or "passed"
            for case in cases
        }


def main(checkout, *names):
    """Run the files both ways, print what differs, and return the number of tests that do."""
    differing = 0
    for name in names or FILES:
        file = pathlib.Path(checkout, "tests", name)
        alone, with_jaxpyop = outcomes(file), outcomes(file, "-p", "tests.peers.one_op_of_each_kind")
        changed = {test: with_jaxpyop.get(test) for test in alone if with_jaxpyop.get(test) != alone[test]}
        passed = sum(outcome == "passed" for outcome in alone.values())
        print(
            f"{name}: {len(alone)} tests, {passed} of them pass alone, {len(changed)} differ with jaxpyop", flush=True
        )
        for test, outcome in changed.items():
            print(f"  {test}: {alone[test]} alone, {outcome} with jaxpyop")
        differing += len(changed)
        assert alone, f"no test of {file} ran"
    return differing


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(min(1, main(*sys.argv[1:])))
