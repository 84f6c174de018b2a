"""Settings and their environment variables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import config
from jaxpyop._op import RECORDS
from tests.shared.util import numpy_function, py_func, run_python

F = jnp.float32
SETTINGS = {
    "mode": ("eager", "traced", ["fast", None, 1], "expected one of"),
    "transport": ("auto", "callback", ["buffer", "", None], "expected one of"),
    "max_records": (None, 7, [0, "None", -1, 1.5, "x", True], "expected|invalid literal"),
    "max_record_bytes": (None, 1000, [0, -1, 2.0, "big"], "expected|invalid literal"),
}
every_setting = pytest.mark.parametrize("name", SETTINGS)


@every_setting
def test_default_set_and_override(name):
    default, other, _, _ = SETTINGS[name]
    before = getattr(config, name)
    if default is not None:
        assert before == default
    try:
        setattr(config, name, other)
        assert getattr(config, name) == other
        with config.override(**{name: before}):
            assert getattr(config, name) == before
        assert getattr(config, name) == other
    finally:
        setattr(config, name, before)
    with pytest.raises(KeyError, match="inside"), config.override(**{name: other}):
        raise KeyError("inside")
    assert getattr(config, name) == before


@every_setting
def test_wrong_values(name):
    _, _, wrong, text = SETTINGS[name]
    before = getattr(config, name)
    for value in wrong:
        with pytest.raises((ValueError, TypeError), match=rf"jaxpyop.config.{name}.*({text})"):
            setattr(config, name, value)
        with pytest.raises((ValueError, TypeError), match=name), config.override(**{name: value}):
            raise AssertionError("not reached")
    assert getattr(config, name) == before


def test_no_such_setting():
    with pytest.raises(AttributeError, match="no setting 'modus'; it has mode"):
        config.modus = "x"
    with pytest.raises(AttributeError, match="modus"), config.override(modus="x"):
        raise AssertionError("not reached")


def test_an_override_that_fails_half_way_changes_nothing():
    with pytest.raises(ValueError, match="transport"), config.override(max_records=5, transport="none"):
        raise AssertionError("not reached")
    assert config.max_records != 5


def test_the_repr_shows_all_settings():
    assert all(f"{name}={getattr(config, name)!r}" in repr(config) for name in SETTINGS)


ENVIRONMENT = {"mode": "auto", "transport": "callback", "max_records": "12", "max_record_bytes": "3456"}


def test_environment_variables():
    code = f"import jaxpyop\nfor k, v in {ENVIRONMENT!r}.items():\n    assert str(getattr(jaxpyop.config, k)) == v, k"
    run_python(code, **{f"JAXPYOP_{k.upper()}": v for k, v in ENVIRONMENT.items()})


def test_no_bound_by_number_of_records():
    with config.override(max_records=None):
        assert RECORDS.max_count > 2**31
        assert RECORDS.stats()["max_bytes"] == config.max_record_bytes
    assert RECORDS.max_count == config.max_records
    run_python("import jaxpyop\nassert jaxpyop.config.max_records is None", JAXPYOP_MAX_RECORDS="none")


@every_setting
def test_wrong_environment_variables_are_named(name):
    variable = f"JAXPYOP_{name.upper()}"
    done = run_python("import jaxpyop", check=False, **{variable: "nonsense"})
    assert done.returncode == 1
    assert f"environment variable {variable}" in done.stderr.splitlines()[-1]


# What a compiled program calls, by transport and statefulness, on one device.
TARGETS = {
    ("auto", False): "buffer",
    ("auto", True): "buffer",
    ("callback", False): "python_cpu_callback",
    ("callback", True): "python_cpu_callback",
}


@pytest.mark.parametrize(("transport", "stateful"), TARGETS)
def test_the_transport_decides_what_a_program_calls(transport, stateful):
    op = lambda x: py_func(np.sin, [x], F) if stateful else numpy_function(np.sin, [x], F)
    with config.override(transport=transport):
        text = jax.jit(op).lower(jnp.ones(3)).as_text()
    assert "custom_call" in text
    assert ("buffer" in text) == (TARGETS[transport, stateful] == "buffer")


@pytest.mark.parametrize("transport", ["auto", "callback"])
def test_ordered_calls_go_the_same_way_with_a_token(transport):
    with config.override(transport=transport):
        text = jax.jit(lambda x: py_func(np.sin, [x], F, ordered=True)).lower(jnp.ones(3)).as_text()
    assert "stablehlo.token" in text
    assert ("buffer" in text) == (transport == "auto")


def test_the_public_names():
    assert {"py_function", "numpy_function", "py_func", "compat", "contrib", "config", "reraise"} <= set(dir(jaxpyop))
    assert jaxpyop.__version__


def test_public_functions_have_docstrings_with_their_sections():
    for function in (jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func, jaxpyop.contrib.framework.py_func):
        for section in ("Args:", "Returns:", "Raises:", "Example:"):
            assert section in function.__doc__, (function, section)


def test_a_lower_bound_of_records_holds_at_once():
    step = jax.jit(lambda x: jax.vjp(lambda x: jaxpyop.py_function(lambda x: x * x, [x], jnp.float32), x)[1])
    for x in (1.0, 2.0, 3.0):
        jax.block_until_ready(step(x))
    with config.override(max_records=1):
        assert RECORDS.stats()["count"] == 1
