"""`python -m jaxpyop`: the demo, the doctor, and errors of usage."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxpyop
from jaxpyop.__main__ import main
from tests.shared.processes import ROOT, on_devices, run_python


def run_main(*arguments, code="", **env):
    """`python -m jaxpyop`, with the warnings that are errors here."""
    start = f"import runpy, sys\n{code}\nsys.argv[1:] = {[*arguments]!r}\n"
    return run_python(f"{start}runpy.run_module('jaxpyop', run_name='__main__', alter_sys=True)", check=False, **env)


def printed(capsys, *arguments):
    with pytest.raises(SystemExit) if arguments[0].startswith("-") else pytest.MonkeyPatch.context():
        assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_the_demo(capsys):
    first, *lines = printed(capsys, "demo").splitlines()
    folder = pathlib.Path(jaxpyop.__file__).parent.resolve()
    assert first.startswith(f"jaxpyop {jaxpyop.__version__} in {folder}, JAX {jax.__version__}, backend ")
    assert max(map(len, lines)) <= 100
    right, of = map(int, re.fullmatch(r"(\d+) of (\d+) values are right", lines[-1]).groups())
    assert right == of == 9
    squeezed = [re.sub(r"\s+", " ", line.strip()) for line in lines]
    for expected in (
        "root of 9 3.0",
        "gradient [[ 0.6 -0.2] [-0.2 0.4]]",
        "shapes that the function saw [(1000,)]",
        "JAX's error has numpy_function 'load' failed: KeyError: 'no sample 7'",
        "inside reraise() KeyError('no sample 7')",
    ):
        assert expected in squeezed


DEMO_ELSEWHERE = {
    "no argument": ([], {}),
    "portable transport": (["demo"], {"JAXPYOP_TRANSPORT": "callback"}),
    "x64": (["demo"], {"JAX_ENABLE_X64": "1"}),
    "four devices": (["demo"], on_devices(4)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "env"), DEMO_ELSEWHERE.values(), ids=DEMO_ELSEWHERE)
def test_the_demo_elsewhere(arguments, env):
    done = run_main(*arguments, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("9 of 9 values are right\n")


def test_the_demo_fails_on_a_wrong_value(capsys, monkeypatch):
    py_function = jaxpyop.py_function
    monkeypatch.setattr(jaxpyop, "py_function", lambda func, inp, tout: 2 * py_function(func, inp, tout))
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "6.0    WRONG, 3.0 is right\n" in out
    assert out.endswith("6 of 9 values are right\n")


@pytest.mark.slow
def test_with_p_python_runs_the_installed_package_and_not_the_folder(tmp_path):
    """The README's command starts in the checkout, and Python puts the folder that it starts in first."""
    (tmp_path / "jaxpyop").mkdir()
    (tmp_path / "jaxpyop" / "__init__.py").write_text("raise SystemExit('the folder beside it')")
    run = lambda *command: subprocess.run(
        [sys.executable, *command, "-m", "jaxpyop", "--version"],
        **{"cwd": tmp_path, "env": {"PYTHONPATH": ROOT}, "capture_output": True, "text": True, "timeout": 100},
    )
    assert run("-P").stdout == f"jaxpyop {jaxpyop.__version__}\n"
    assert "the folder beside it" in run().stderr


def test_the_doctor(capsys):
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: x * x, [x], jnp.float32)))(3.0))
    out = printed(capsys, "doctor")
    assert max(map(len, out.splitlines())) <= 100
    for expected in (
        rf"jaxpyop +{re.escape(jaxpyop.__version__)}\n",
        r"python +3\.\d+",
        r"jax, jaxlib +\d+\.",
        r"numpy +\d+\.",
        r"backend +\w+\n",
        r"devices +\d+: ",
        r"x64 +off",
        r"transport +auto: ",
        r"JAX in bodies +safe\? yes: ",
        r"gradient records +[1-9]\d* kept",
        *(rf"  {name} +\S+ +environment variable JAXPYOP_{name.upper()} " for name in vars(jaxpyop.config)),
    ):
        assert re.search(expected, out), expected
    with jaxpyop.config.override(transport="callback", max_records=7), jax.enable_x64(True):
        out = printed(capsys, "doctor")
    assert "(at most 7)" in out
    assert "callback: pure_callback" in out
    assert "buffer_callback" not in out
    assert re.search(r"x64 +on\n", out)


@pytest.mark.slow
def test_the_doctor_of_other_processes():
    done = run_main("doctor", JAXPYOP_MAX_RECORDS="7", **on_devices(8))
    assert re.search(r"devices +8: .*, \.\.\.\n", done.stdout)
    assert "io_callback over several" in done.stdout
    assert re.search(r"max_records +7 .*\(= '7'\)", done.stdout)
    late = "import warnings; warnings.simplefilter('ignore')\nimport jax; jax.devices()"
    assert "safe? no: JAX had started before jaxpyop was imported" in run_main("doctor", code=late).stdout


@pytest.mark.parametrize("arguments", [["docto"], ["demo", "more"], ["--nothing"]], ids=" ".join)
def test_errors_of_usage(arguments, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(arguments)
    assert "usage: python -m jaxpyop" in capsys.readouterr().err


def test_help_and_version(capsys):
    assert re.search(r"(?s)demo.*doctor", printed(capsys, "--help"))
    assert printed(capsys, "--version") == f"jaxpyop {jaxpyop.__version__}\n"
