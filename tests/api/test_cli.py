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


def call(*arguments, **environment):
    command = [sys.executable, "-W", "error", *arguments]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("JAXPYOP_", "XLA_FLAGS"))}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, cwd=ROOT, env={**variables, **environment}
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
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert re.fullmatch(r"all \d+ values are correct", lines[-1])
    assert "WRONG" not in done.stdout
    squeezed = [re.sub(r"\s+", " ", line.strip()) for line in lines]
    for expected in (
        "value 1.0 ok",
        "gradient in x 2.0 ok",
        "value 7.243721 ok",
        "gradient in x 2.6666667 ok",
        "under jit [0., 2.] ok",
        "the caller's array [1., 2.] ok",
        "shape and dtype (20, 256, 256, 3) float32 ok",
        "the log [(0, 10.0), (1, 5.0), (2, 2.5), (3, 1.25)] ok",
    ):
        assert expected in squeezed or environment.get("JAX_ENABLE_X64")
    for name in ("py_function", "numpy_function", "py_func", "contrib.framework.py_func", "compat.v1", "compat.v2"):
        assert name in done.stdout


def test_demo_fails_on_a_wrong_value(monkeypatch, capsys):
    def wrong(sheet):
        sheet.title("an example")
        sheet.value("right", 1.0, 1.0)
        sheet.value("wrong", 1.5, 1.0)

    monkeypatch.setattr(demo, "EXAMPLES", [wrong])
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "WRONG, the right value is 1.0" in out
    assert out.endswith("1 of 2 values are wrong\n")


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (1.0, 1.0000001, True),
        (1.0, 1.001, False),
        (float("nan"), 1.0, False),
        (jnp.array([1.0, 2.0]), np.array([1.0, 2.0]), True),
        (jnp.array([1.0]), np.array([1.0, 1.0]), False),  # broadcasting is not equality
        (1.0, np.array([1.0]), False),
        ((3.0, 3), [3.0, 3], True),
        ([1, 2], [1, 2, 3], False),
        ([], [1], False),
        ("a", "a", True),
        ("a", "b", False),
        ("1.0", 1.0, False),
        (None, 1.0, False),
        (False, True, False),
    ],
)
def test_how_demo_compares(got, want, equal):
    assert demo._equal(got, want) is equal


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
        r"pool threads +",
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
