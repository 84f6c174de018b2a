"""The names of the functions that traced mode allows are names of their modules."""

import jax.numpy as jnp
import pytest

from jaxpyop._traced import allowed


def test_a_misspelt_name_is_an_error():
    assert allowed._named(jnp, "sin cos").keys() == {id(jnp.sin), id(jnp.cos)}
    with pytest.raises(AttributeError, match="sinn"):
        allowed._named(jnp, "sin sinn")
