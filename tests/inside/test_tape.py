"""The tape, inside: what a record keeps, what it shares, and what it is asked wrongly.

gradients/ has what a user sees of it.
"""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import _tape
from tests.gradients.bodies import X3, F, custom_square
from tests.shared.checks import close

X = jnp.asarray(X3)


record_of = lambda body, inputs, perturbed: _tape.record(lambda arrays: body(*arrays), inputs, perturbed)
array_bytes = lambda record: sum(a.nbytes for a in record.arrays())


def test_arrays_are_kept_once():
    x = jnp.ones(1000, F)
    _, record = record_of(lambda a, b: [a * b + (a + b) * x], [x, x], [True, True])
    assert array_bytes(record) == 4000  # x, once: sums need nothing, a product only the other factor
    _, record = record_of(lambda a: [custom_square(a * x, a)], [x], [True])
    assert array_bytes(record) == 2 * 4000  # x and the product, which the rule saved
    _, record = record_of(lambda a: [a.astype(jnp.int32), a + x], [x], [True])
    assert array_bytes(record) == 0
    close(record.pullback([None, x])[0], x)
    close(record.pushforward([x])[1], x)


@pytest.mark.slow
def test_a_record_keeps_neither_tracers_nor_the_function():
    class Held:
        def __call__(self, x):
            y = x * x
            tracers.append(weakref.ref(y))
            return [jax.jit(lambda z: z * y)(x)]

    held, tracers = Held(), []
    alive = weakref.ref(held)
    _, record = record_of(held, [F(1)], [True])
    del held
    gc.collect()
    assert alive() is tracers[0]() is None
    assert record.pullback([F(1)])[0] == 3


def test_records_of_one_line_share_their_program():
    body = lambda x: [functools.reduce(lambda x, _: x * x, range(30), x)]
    first, second = (record_of(body, [F(1)], [True])[1] for _ in range(2))
    assert first._program is second._program
    assert 30 * 1000 < first.nbytes < 60 * 1700  # the arrays alone, which are small


def test_a_number_that_comes_again_is_one_of_jnps():
    """Its type and sign are those of jnp's, and it may be deleted, as some do with all arrays."""
    numbers = [0.5, 3, -0.0, 0.0, True, 2.5]
    body = lambda x: [x * n for n in numbers]
    want, pull = jax.vjp(body, F(2))
    ones = [jnp.ones_like(w) for w in want]
    for _ in range(2):
        outs, record = record_of(body, [F(2)], [True])
        assert [(o.dtype, o.weak_type) for o in outs] == [(w.dtype, w.weak_type) for w in want]
        np.testing.assert_array_equal(np.signbit(outs), np.signbit(want))
        np.testing.assert_allclose(record.pullback(ones)[0], pull(ones)[0])
    for array in record.arrays():
        array.delete()
    assert [float(o) for o in record_of(body, [F(2)], [True])[0]] == [1, 6, 0, 0, 2, 5]
