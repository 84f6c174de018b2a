"""Runs of hundreds of steps, after which a step takes as long as before, and little memory is held."""

import jax

from tests.bench.cases.case import compare
from tests.bench.cases.gradients import length_steps
from tests.memory import resident


def lengths_run():
    """The memory that 500 lengths take in plain JAX, what ours adds to it, and the time of a step after them."""
    grown, steps_of, before = [], length_steps(1000), resident()
    for step in reversed(steps_of.values()):
        for n in range(10, 510):
            jax.block_until_ready((step(n), step(n)))
        grown.append(resident() - before)
        before = resident()
    title = f"500 lengths: {grown[0]:.0f} MB in JAX, ours {grown[1]:.0f} more"
    return compare(title, steps_of, 100, calls=5)


GROUPS = [lengths_run]
