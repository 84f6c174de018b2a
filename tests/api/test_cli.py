"""`python -m jaxpyop`: what is printed, and the exit codes."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop.__main__ import main
from jaxpyop._cli import demo, doctor

ROOT = pathlib.Path(__file__).parents[2]


def call(*arguments, cwd=ROOT, **environment):
    command = [sys.executable, "-W", "error", *arguments]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("JAXPYOP_", "XLA_FLAGS"))}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, cwd=cwd, env={**variables, **environment}
    )


def jaxpyop_command(*arguments, **environment):
    return call("-m", "jaxpyop", *arguments, **environment)


# ------------------------------------------------------------------------- demo


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        pytest.param([], {}, id="no_argument"),
        pytest.param(["demo"], {"JAXPYOP_TRANSPORT": "callback"}, id="portable_transport"),
        pytest.param(["demo"], {"JAX_ENABLE_X64": "1"}, id="x64"),
        pytest.param(["demo"], {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, id="four_devices"),
    ],
)
def test_demo(arguments, environment):
    done = jaxpyop_command(*arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith(
        f"jaxpyop {jaxpyop.__version__} in {ROOT.resolve() / 'jaxpyop'}, JAX {jax.__version__}, backend "
    )
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "9 of 9 values are right"
    squeezed = [re.sub(r"\s+", " ", line.strip()) for line in lines]
    for expected in (
        "root of 9 3.0",
        "gradient [[ 0.6 -0.2] [-0.2 0.4]]",
        "shapes that the function saw [(1000,)]",
        "JAX's error has numpy_function 'load' failed: KeyError: 'no sample 7'",
        "inside reraise() KeyError('no sample 7')",
    ):
        assert expected in squeezed


def test_demo_fails_on_a_wrong_value(monkeypatch, capsys):
    def example():
        """An example."""
        yield "right", 1.0, 1.0
        yield "wrong", 1.5, 1.0
        yield "of another shape", np.array([1.0]), np.array([1.0, 1.0])
        yield "another text", "a", "b"

    monkeypatch.setattr(demo, "EXAMPLES", [example])
    assert main(["demo"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("WRONG, ")[1] for line in lines if "WRONG" in line] == [
        "1.0 is right",
        "[1. 1.] is right",
        "b is right",
    ]
    assert lines[-1] == "1 of 4 values are right"


def test_the_command_in_the_readme_runs_the_installed_package(tmp_path):
    """It starts in the checkout, and Python puts the folder that it starts in first, unless it is told not to."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"<!-- ci: demo -->\n```bash\npython -m pip install \. && python (.*)\n", readme)[1]
    (tmp_path / "jaxpyop").mkdir()
    (tmp_path / "jaxpyop" / "__init__.py").write_text("raise SystemExit('the folder beside it')")
    installed = call(*command.split(), "--help", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert installed.returncode == 0, installed.stderr
    beside = call("-m", "jaxpyop", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert "the folder beside it" in beside.stderr


# ----------------------------------------------------------------------- doctor


def test_doctor():
    done = jaxpyop_command("doctor")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
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
        r"gradient records +0 kept",
    ):
        assert re.search(expected, done.stdout), expected


def test_doctor_shows_every_setting_and_its_variable():
    done = jaxpyop_command("doctor", JAXPYOP_MAX_RECORDS="7", JAXPYOP_TRANSPORT="callback", JAX_ENABLE_X64="1")
    for name in vars(jaxpyop.config):
        assert re.search(rf"  {name} +\S+ +environment variable JAXPYOP_{name.upper()} ", done.stdout), name
    assert re.search(r"max_records +7 .*\(= '7'\)", done.stdout)
    assert "(at most 7)" in done.stdout
    assert "callback: pure_callback" in done.stdout
    assert "buffer_callback" not in done.stdout
    assert re.search(r"x64 +on\n", done.stdout)


def test_doctor_over_several_devices():
    done = jaxpyop_command("doctor", XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
    assert re.search(r"devices +8: .*, \.\.\.\n", done.stdout)
    assert "io_callback over several" in done.stdout


def test_doctor_after_a_late_import():
    done = call(
        "-c",
        textwrap.dedent("""
            import warnings
            import jax
            jax.devices()
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                import jaxpyop
            from jaxpyop.__main__ import main
            raise SystemExit(main(["doctor"]))
        """),
        NPROC="",
        JAX_PLATFORMS="cpu",
    )
    assert done.returncode == 0, done.stderr
    assert "safe? no: JAX had started before jaxpyop was imported" in done.stdout


def test_doctor_tells_of_kept_records():
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: x * x, [x], jnp.float32)))(3.0))
    assert re.search(r"gradient records +[1-9]\d* kept", doctor.report())


# ------------------------------------------------------------------------ usage


@pytest.mark.parametrize("arguments", [["docto"], ["demo", "more"], ["--nothing"]])
def test_errors_of_usage(arguments, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(arguments)
    assert "usage: python -m jaxpyop" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    out = capsys.readouterr().out
    assert "demo" in out
    assert "doctor" in out


def test_an_unknown_value_in_the_environment_is_named():
    done = jaxpyop_command("doctor", JAXPYOP_TRANSPORT="pigeon")
    assert done.returncode == 1
    assert "environment variable JAXPYOP_TRANSPORT: " in done.stderr


def test_the_version(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"jaxpyop {jaxpyop.__version__}\n"
