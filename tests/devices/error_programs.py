"""Programs over four devices whose function fails: its own error comes out soon, and the next program works."""

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.devices.common import FULL, F, Log, expect_error, fail, finish, program, same
from tests.shared.functions import numpy_function, py_func


def failing(op, shape, func=fail, **options):
    return lambda x: op(func, [x], F, output_shapes=shape, **options)


def fail_on_the_first_shard(x):
    return fail() if np.asarray(x)[0] == 0 else x


ERRORS = {
    "jit": lambda on, op: jax.jit(failing(op, (8,))),
    "jit before a collective": lambda on, op: jax.jit(lambda x: (failing(op, (8,))(x) + x).sum()),
    "jit, result unused": lambda on, op: jax.jit(lambda x: (failing(py_func, (8,))(x), x)[1]),
    "pmap": lambda on, op: lambda x: jax.pmap(failing(op, ()))(FULL[:4]),
    "shard_map": lambda on, op: on.shard_map(failing(op, (2,))),
    "shard_map, one shard": lambda on, op: on.shard_map(failing(op, (2,), fail_on_the_first_shard)),
    "shard_map before a collective": lambda on, op: on.shard_map(
        lambda x: lax.psum(failing(op, (2,))(x), "d"), out_specs=P()
    ),
    "jit of gradient": lambda on, op: jax.jit(jax.grad(lambda x: op(lambda x: x, [x], F, vjp=fail).sum())),
    "gradient of shard_map": lambda on, op: jax.jit(
        jax.grad(lambda x: on.shard_map(lambda x: op(lambda x: x, [x], F, vjp=fail))(x).sum())
    ),
}


@program
def errors(on):
    for make in ERRORS.values():
        for op in (numpy_function, py_func):
            expect_error(make(on, op), on.x)
            log = Log()
            same(finish(jax.jit(lambda x: op(log, [x], F))(on.x)) + on.x, FULL * 3)  # noqa: B023
            assert set(map(tuple, log.seen)) == {tuple(FULL)}
    same(on.shard_map(lambda x: numpy_function(lambda x: x * 2, [x], F))(on.x), FULL * 2)
