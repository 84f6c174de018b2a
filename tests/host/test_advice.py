"""What errors of batches and results advise is what helps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.batch_cases import LOOPING, F, grid
from tests.shared.util import both_sides, every_api, numpy_function


@pytest.mark.parametrize("method", LOOPING)
@both_sides
def test_a_stop_iteration_of_an_element_stays_one(api, method, route):
    def body(x):
        raise StopIteration("mine")

    f = jax.vmap(lambda x: api(body, [x], F, vmap_method=method, output_shapes=()))
    with pytest.raises(StopIteration, match="mine") as caught, jaxpyop.reraise():
        route(f, grid(3))
    assert any(note.startswith("at batch index") for note in caught.value.__notes__)


@every_api
def test_a_wrong_shape_where_tout_has_one(api, route):
    text = r"where \(3,\) was declared; write that shape in Tout, jax.ShapeDtypeStruct\(\(2,\), jnp.float32\)"
    with pytest.raises(ValueError, match=text), jaxpyop.reraise():
        route(lambda x: api(lambda x: x[:2], [x], jax.ShapeDtypeStruct((3,), F)), grid(3))
    op = lambda x: api(lambda x: x[:2], [x], jax.ShapeDtypeStruct((2,), F))
    np.testing.assert_array_equal(route(op, grid(3)), grid(2))


@pytest.mark.parametrize(
    ("value", "tout", "kind"),
    [(-1, jnp.uint32, "a signed"), (300, jnp.uint8, "a wider"), (-300, jnp.int8, "a wider")],
)
@pytest.mark.parametrize("make", [lambda v: v, lambda v: np.full(2, v)], ids=["number", "array"])
def test_a_value_that_does_not_fit(make, value, tout, kind, route):
    found = make(value)
    with pytest.raises(OverflowError, match=rf"does not fit.*declare {kind} Tout"), jaxpyop.reraise():
        route(lambda: numpy_function(lambda: found, [], tout, output_shapes=np.shape(found)))
