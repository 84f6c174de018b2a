"""Ops whose bodies return a given value."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxpyop


def returning(api, route, value, tout, shapes=None, **options):
    """The op's result when its body returns `value`."""
    if shapes is None and isinstance(value, (np.ndarray, np.generic, jax.Array)):
        shapes = value.shape
    return route(lambda: api(lambda: value, [], tout, output_shapes=shapes, **options))


def refused(api, route, value, tout, error, text, **options):
    """The op's error, the same under jit as directly, by way of reraise()."""
    with pytest.raises(error, match=text) as caught, jaxpyop.reraise():
        returning(api, route, value, tout, **options)
    return caught.value
