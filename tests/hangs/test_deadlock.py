"""Starts the programs of `deadlock_programs.py`, where a new one belongs: JAX code in functions does not hang.

The import that arranges this says when it came too late.
"""

import pytest

from tests.shared.many_programs import run_module
from tests.shared.processes import run_python

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["auto", "callback"])
def test_programs_end(transport):
    run_module("tests.hangs.deadlock_programs", transport)


@pytest.mark.timeout(300)
def test_a_function_too_many_raises_where_all_would_wait():
    run_module("tests.hangs.crowds")


# -------------------------------------------------------------------- what the import arranges

IN_PLACE = """
import os, pathlib
names = [p.read_text().strip() for p in pathlib.Path("/proc/self/task").glob("*/comm")]
assert int(os.environ["NPROC"]) >= 32, os.environ.get("NPROC")
assert sum("XLAEigen" in name for name in names) >= 32, names
if jax.__version_info__ < (0, 12):
    assert jax.config.read("jax_cpu_enable_async_dispatch") is False
"""


@pytest.mark.parametrize(
    "code",
    ["import jaxpyop, jax; jax.devices()", "import jax, jax.numpy as jnp, jaxpyop; jnp.ones(3)"],
    ids=["before jax", "after jax.numpy"],
)
def test_an_import_before_the_first_operation_is_silent(code):
    done = run_python(f"import warnings; warnings.simplefilter('error'); {code}\n{IN_PLACE}")
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("first", ["jax.devices()", "jax.numpy.ones(3)"])
def test_a_late_import_warns_and_says_what_to_write(first):
    done = run_python(f"import jax; {first}\nimport jaxpyop")
    assert "RuntimeWarning: jaxpyop was imported after JAX had started" in done.stderr
    assert "import jaxpyop before the first JAX operation" in done.stderr
    assert done.stderr.count("Warning") == 1


def test_a_small_number_of_threads_that_the_user_set_is_kept():
    """And `doctor` says what it means."""
    code = """
import runpy, sys, os, jaxpyop
assert os.environ["NPROC"] == "4"
sys.argv = ["jaxpyop", "doctor"]
runpy.run_module("jaxpyop", run_name="__main__")
"""
    text = " ".join(run_python(code, NPROC="4").stdout.split())
    assert "NPROC=4 was set in the environment, and is kept" in text


@pytest.mark.parametrize(("value", "kept"), [("77", 77), ("many", None), ("", None)])
def test_a_number_of_threads_is_kept_and_what_is_none_is_replaced(value, kept):
    found = int(run_python("import jaxpyop, os; print(os.environ['NPROC'])", NPROC=value).stdout)
    assert found == kept if kept else found >= 32


def test_the_import_alone_starts_nothing():
    """No thread of XLA's, which JAX's first operation starts."""
    code = "import jaxpyop, pathlib\nnames = [p.read_text() for p in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
    run_python(code + "assert not any('XLA' in name for name in names), names")
