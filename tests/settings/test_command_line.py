"""`python -m jaxpyop`: the demo, the doctor, and errors of usage."""

import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxpyop
from jaxpyop.__main__ import main
from tests.shared.processes import ROOT, on_devices, run_python


def run_main(*arguments, before="", **env):
    """`python -m jaxpyop` in a process of its own."""
    start = f"{before}\nimport runpy, sys\nsys.argv[1:] = {[*arguments]!r}\n"
    return run_python(f"{start}runpy.run_module('jaxpyop', run_name='__main__')", check=False, **env)


def test_the_demo(capsys):
    assert main(["demo"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    folder = pathlib.Path(jaxpyop.__file__).parent.resolve()
    assert first.startswith(f"jaxpyop {jaxpyop.__version__} in {folder}, JAX {jax.__version__}, backend ")
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "9 of 9 values are right"
    squeezed = [re.sub(r"\s+", " ", line.strip()) for line in lines]
    assert "root of 9 3.0" in squeezed
    assert "shapes that the function saw [(1000,)]" in squeezed
    assert "JAX's error has numpy_function 'load' failed: KeyError: 'no sample 7'" in squeezed


def test_a_demo_that_shows_a_wrong_value_fails(capsys, monkeypatch):
    monkeypatch.setattr(np.linalg, "inv", lambda a: a)
    assert main(["demo"]) == 1
    assert re.search(r"WRONG(?s:.*)\n8 of 9 values are right\n$", capsys.readouterr().out)


@pytest.mark.slow
def test_without_an_argument_it_is_the_demo_whatever_the_settings():
    done = run_main(JAXPYOP_TRANSPORT="callback", JAX_ENABLE_X64="1", **on_devices(4))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("9 of 9 values are right\n")


@pytest.mark.slow
def test_the_command_of_the_readme_runs_the_installed_package_and_not_the_folder(tmp_path):
    """It starts in the checkout, and Python puts the folder that it starts in first."""
    (options,) = re.findall("&& python (.*)-m jaxpyop demo", (pathlib.Path(ROOT) / "README.md").read_text("utf-8"))
    (tmp_path / "jaxpyop").mkdir()
    (tmp_path / "jaxpyop" / "__init__.py").write_text("raise SystemExit('the folder beside it')")
    where = {"cwd": tmp_path, "env": {"PYTHONPATH": ROOT}, "capture_output": True, "text": True, "timeout": 100}
    run = lambda *o: subprocess.run([sys.executable, *o, "-m", "jaxpyop", "--version"], check=False, **where)
    assert run(*options.split()).stdout == f"jaxpyop {jaxpyop.__version__}\n"
    assert "the folder beside it" in run().stderr


PARTS = [r"python +3\.\d+", r"jax, jaxlib +\d+\.", r"numpy +\d+\.", r"backend +\w+\n", r"devices +\d+: ", "x64 +off"]
PARTS += [r"JAX in bodies +safe\? yes: "]
PARTS += [rf"  {name} +\S+ +environment variable JAXPYOP_{name.upper()} " for name in vars(jaxpyop.config)]


def test_the_doctor(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for expected in (rf"jaxpyop +{re.escape(jaxpyop.__version__)}\n", *PARTS):
        assert re.search(expected, out), expected
    with jaxpyop.config.override(constants="allow", max_record_bytes=7), jax.enable_x64(True):
        assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for expected in (r"constants +allow ", r"max_record_bytes +7 ", r"x64 +on\n"):
        assert re.search(expected, out), expected


@pytest.mark.slow
def test_the_doctor_of_other_processes():
    out = run_main("doctor", JAXPYOP_MAX_RECORD_BYTES="7", **on_devices(8)).stdout
    for expected in (r"devices +8: .*, \.\.\.\n", r"max_record_bytes +7 .*\(= '7'\)"):
        assert re.search(expected, out), expected
    late = "import warnings; warnings.simplefilter('ignore')\nimport jax; jax.devices()"
    assert "safe? no: JAX had started before jaxpyop was imported" in run_main("doctor", before=late).stdout


USAGE = {"docto": 2, "demo more": 2, "--nothing": 2, "--help": 0, "--version": 0}


@pytest.mark.parametrize(("arguments", "status"), USAGE.items(), ids=USAGE)
def test_usage_help_and_version(arguments, status, capsys):
    with pytest.raises(SystemExit, match=f"^{status}$"):
        main(arguments.split())
    out, err = capsys.readouterr()
    expected = r"(?s)demo.*doctor" if arguments == "--help" else rf"^jaxpyop {re.escape(jaxpyop.__version__)}\n$"
    assert re.search("usage: python -m jaxpyop", err) if status else re.search(expected, out)
