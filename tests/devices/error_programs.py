"""Programs over four devices whose function fails: its own error comes out soon, and the next program works."""

from __future__ import annotations

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.devices.common import (
    PROGRAMS,
    F,
    expect_error,
    fail,
    fail_on_the_first_shard,
    numpy_function,
    program,
    stateful,
    works_again,
)

ERRORS = {
    "jit": lambda on, op: jax.jit(lambda x: op(fail, [x], F, output_shapes=(8,))),
    "jit before a collective": lambda on, op: jax.jit(lambda x: (op(fail, [x], F, output_shapes=(8,)) + x).sum()),
    "jit, result unused": lambda on, op: jax.jit(lambda x: (stateful(fail, [x], F), x)[1]),
    "jit of scan": lambda on, op: jax.jit(
        lambda x: lax.scan(lambda c, _: (op(fail, [c], F, output_shapes=(8,)), None), x, None, length=3)[0]
    ),
    "jit of vmap": lambda on, op: jax.jit(jax.vmap(lambda x: op(fail, [x], F, output_shapes=()))),
    "jit of parallel vmap": lambda on, op: jax.jit(
        jax.vmap(lambda x: op(fail, [x], F, output_shapes=(), vmap_method="parallel"))
    ),
    "shard_map": lambda on, op: on.shard_map(lambda x: op(fail, [x], F, output_shapes=(2,))),
    "shard_map, one shard": lambda on, op: on.shard_map(
        lambda x: op(fail_on_the_first_shard, [x], F, output_shapes=(2,))
    ),
    "shard_map before a collective": lambda on, op: on.shard_map(
        lambda x: lax.psum(op(fail, [x], F, output_shapes=(2,)), "d"), out_specs=P()
    ),
    "shard_map of vmap": lambda on, op: on.shard_map(jax.vmap(lambda x: op(fail, [x], F, output_shapes=()))),
    "shard_map of scan": lambda on, op: on.shard_map(
        lambda x: lax.scan(lambda c, _: (op(fail, [c], F, output_shapes=(2,)), None), x, None, length=3)[0]
    ),
}


def error_program(make):
    def run(on):
        for op in (numpy_function, stateful):
            expect_error(make(on, op), on.x)
        works_again(on, op)

    return run


PROGRAMS |= {f"error in {name}": error_program(make) for name, make in ERRORS.items()}


@program
def error_in_a_backward_pass(on):
    square = lambda x: numpy_function(lambda x: x**2, [x], F, vjp=fail)
    log = lambda x: stateful(lambda x: x**2, [x], F, vjp=fail)
    for op in (square, log):
        expect_error(jax.jit(jax.grad(lambda x, op=op: op(x).sum())), on.x)
        expect_error(jax.jit(jax.grad(lambda x, op=op: on.shard_map(op)(x).sum())), on.x)
        works_again(on, stateful)
