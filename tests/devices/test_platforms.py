"""Platforms that are not here: what programs for them are lowered to, or how they are refused."""

import re
import textwrap
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import _jaxcore, _sharding
from tests.shared.processes import on_devices, run_python

F = jnp.float32


def lowered_for(platform, func, mode):
    op = jax.jit(lambda x: jaxpyop.py_function(func, [x], F, mode=mode))
    return op.trace(jnp.float32(1)).lower(lowering_platforms=(platform,)).as_text()


def of_arrays(x):
    return x * x if x > 0 else jnp.float32(2) - x


def of_floats(x):
    return jnp.float32(float(x) * 0.1)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_traced_function_is_lowered_for_each_platform(platform):
    text = lowered_for(platform, of_arrays, "traced")
    assert "f64" not in text
    assert "custom_call" not in text


def test_python_floats_are_refused_on_tpus():
    """They have 64 bits there, too, but are computed with fewer."""
    assert "f64" in lowered_for("cuda", of_floats, "traced")
    with pytest.raises(NotImplementedError, match=r"Python floats.*TPUs compute with fewer.*jnp.float32"):
        lowered_for("tpu", of_floats, "traced")


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_call_is_not_lowered_for_a_platform_that_is_not_here(platform):
    with pytest.raises(NotImplementedError, match=f"this backend .{platform}, which this process only lowers for"):
        lowered_for(platform, np.negative, "eager")


def test_a_process_without_a_cpu_client_says_what_to_set():
    """As with JAX_PLATFORMS=cuda."""
    missing = mock.Mock(side_effect=RuntimeError("Unknown backend cpu"))
    with (
        mock.patch.object(jax, "local_devices", missing),
        mock.patch.object(_jaxcore, "jax_config", mock.Mock(jax_platforms="cuda")),
        pytest.raises(RuntimeError, match=re.escape("set JAX_PLATFORMS=cuda,cpu")),
        mock.patch("jaxpyop._jaxcore.runtime.jax_config", mock.Mock(jax_platforms="cuda")),
    ):
        _sharding.cpu_device()


@pytest.mark.slow
def test_an_error_reaches_all_devices_of_a_platform_whose_memory_python_cannot_read():
    """The route of several GPUs, on CPU devices."""
    code = """
        from unittest import mock
        import jaxpyop, jax, jax.numpy as jnp, numpy as np, pytest
        from jax.sharding import NamedSharding, PartitionSpec as P
        from jaxpyop import _jaxcore
        x = jax.device_put(jnp.arange(8.0), NamedSharding(jax.make_mesh((4,), ("d",)), P("d")))
        def fails(x):
            raise KeyError("mine")
        with mock.patch.object(_jaxcore, "platforms", lambda ctx: ("cuda",)):
            # XLA refuses ordered effects of other devices than CPUs over several devices before JAX 0.10.2.
            has_order = jax.__version_info__ >= (0, 10, 2)
            for how in ({}, {"stateful": True}, {"stateful": True, "ordered": True})[: 3 if has_order else 2]:
                shape = jax.ShapeDtypeStruct((8,), "float32")
                program = lambda f: jax.jit(lambda x: jaxpyop.numpy_function(f, [x], shape, **how) * 2 + x.sum())
                for _ in range(2):
                    np.testing.assert_array_equal(program(np.negative)(x), 28 - 2 * np.arange(8))
                    with pytest.raises(KeyError, match="mine"), jaxpyop.reraise():
                        jax.block_until_ready(program(fails)(x))
    """
    run_python(textwrap.dedent(code), **on_devices(4))
