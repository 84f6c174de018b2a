"""Primitives of the user's own, which JAX expands (`jax.experimental.hijax.HiPrim`, from JAX 0.12)."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpyop

hijax = importlib.import_module("jax.experimental.hijax") if jax.__version_info__ >= (0, 12) else None
FACTOR = [2.0]


if hijax is not None:

    class Times(hijax.HiPrim):
        lin, linearized = hijax.linearize_from_jvp
        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return x * FACTOR[0]

        def jvp(self, primals, tangents):
            return self(*primals), tangents[0] * FACTOR[0]


def times_factor(x):
    return Times(jax.typeof(x))(x)


def in_scan(x):
    return lax.scan(lambda c, _: (times_factor(c), None), x, None, length=1)[0]


def in_cond(x):
    return lax.cond(x > 0, lambda x: times_factor(x), lambda x: -x, x)


def in_checkpoint(x):
    return jax.checkpoint(lambda x: times_factor(x) * 1.0)(x)


if hijax is not None:

    @pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
    @pytest.mark.parametrize("body", [times_factor, in_scan, in_cond, in_checkpoint], ids=lambda body: body.__name__)
    def test_its_rules_are_asked_each_time(body, jit):
        """They may read variables that change."""
        step = jax.value_and_grad(lambda x: jaxpyop.py_function(body, [x], jnp.float32, output_shapes=()))
        step = jax.jit(step) if jit else step
        for factor in (2.0, 2.0, 2.0, 5.0, 7.0):
            FACTOR[0] = factor
            np.testing.assert_allclose(step(3.0), (3 * factor, factor))
