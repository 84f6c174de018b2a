"""`jaxpyop.config` and its environment variables: defaults, changes, wrong values, and what each setting does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import config
from tests.shared.checks import over_transport
from tests.shared.functions import numpy_function, py_function
from tests.shared.processes import run_python

F = jnp.float32
# Another value than the default, and values that are refused.
SETTINGS = {
    "mode": ("traced", ["fast", None, 1]),
    "constants": ("error", ["warning", None]),
    "errors": ("refuse", ["call", None]),
    "max_record_bytes": (1000, [0, -1, 2.0, "big", None, True]),
}
every_setting = pytest.mark.parametrize(
    ("name", "other", "wrong"), [(k, *v) for k, v in SETTINGS.items()], ids=SETTINGS
)


def test_all_settings_are_here_and_in_the_repr():
    assert vars(config).keys() == SETTINGS.keys()
    assert all(f"{name}={getattr(config, name)!r}" in repr(config) for name in SETTINGS)


@every_setting
def test_a_setting_can_be_set_and_overridden(name, other, wrong):
    before = getattr(config, name)
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
def test_a_wrong_value_changes_nothing(name, other, wrong):
    before = dict(vars(config))
    for value in wrong:
        with pytest.raises(ValueError, match=rf"jaxpyop.config.{name}: expected (one of|a whole number)"):
            setattr(config, name, value)
        with (
            pytest.raises(ValueError, match=name),
            config.override(**({"mode": "auto", "max_record_bytes": 9} | {name: value})),
        ):
            raise AssertionError("not reached")
    assert vars(config) == before


def test_there_is_no_other_setting():
    with pytest.raises(AttributeError, match="no setting 'modus'; it has mode, constants"):
        config.modus = "x"
    with pytest.raises(AttributeError, match="modus"), config.override(modus="x"):
        raise AssertionError("not reached")


@pytest.mark.slow
def test_environment_variables_and_defaults():
    """In the order of the table, in a process of its own."""
    code = "import jaxpyop\nprint(*vars(jaxpyop.config).values())"
    defaults = run_python(code).stdout.split()
    assert defaults[:3] == ["eager", "warn", "raise"]
    assert int(defaults[3]) >= 256 * 2**20
    values = ["auto", "allow", "refuse", "3456"]
    variables = {f"JAXPYOP_{name.upper()}": value for name, value in zip(SETTINGS, values)}
    assert run_python(code, **variables).stdout.split() == values


@pytest.mark.slow
def test_a_wrong_environment_variable_is_named():
    code = f"""
import os, sys
for name in {[f"JAXPYOP_{name.upper()}" for name in SETTINGS]}:
    os.environ[name] = "nonsense"
    try:
        import jaxpyop
    except ValueError as error:
        assert f"environment variable {{name}}: " in str(error), error
    else:
        raise AssertionError(name)
    del os.environ[name]
import jaxpyop
"""
    run_python(code)


# ----------------------------------------------------------- what the settings do


@pytest.mark.parametrize("transport", ["auto", "callback"])
@pytest.mark.parametrize("options", [{}, {"stateful": True}, {"ordered": True}], ids=str)
def test_the_transport_decides_what_a_program_calls(transport, options):
    with over_transport(transport):
        text = jax.jit(lambda x: numpy_function(np.sin, [x], F, **options)).lower(jnp.ones(3)).as_text()
    assert ("buffer" in text) == (transport == "auto")
    assert "custom_call" in text
    assert ("stablehlo.token" in text) == ("ordered" in options)


def test_the_mode_is_the_default_of_py_function():
    f = lambda **options: str(jax.make_jaxpr(lambda x: py_function(lambda x: x * 2, [x], F, **options))(1.0))
    assert "python_call" in f()
    with config.override(mode="traced"):
        assert "python_call" not in f()
        assert "python_call" in f(mode="eager")
        assert "python_call" in f(stateful=True)


def test_a_lower_bound_of_records_holds_at_once():
    calls = []
    square = lambda x: py_function(lambda x: calls.append(1) or x * x, [x], F(0), name="a lower bound")
    step = jax.jit(lambda x: jax.vjp(square, x))
    pulls = [jax.block_until_ready(step(x))[1] for x in (1.0, 2.0, 3.0)]
    with config.override(max_record_bytes=1):
        pass
    calls.clear()
    with pytest.warns(RuntimeWarning, match="pushed out"):
        assert [float(pull(1.0)[0]) for pull in pulls] == [2, 4, 6]
    assert len(calls) == 2  # the newest record stays
