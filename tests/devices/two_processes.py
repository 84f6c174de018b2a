"""Programs of two processes with two devices each, joined by `jax.distributed`, which run the same list in step."""

# ruff: noqa: B008, B023, PT017  # what a loop makes is called in the same turn

import re
import sys

import jaxpyop

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.devices import common
from tests.devices.common import FULL, OPS, SHARDS, STATEFUL, F, Log, expect_error, fail, finish, program, same
from tests.shared import many_programs
from tests.shared.functions import numpy_function, py_func, py_function


class Devices(common.Devices):
    """With the number of the process."""

    def __init__(self, kind):
        self.me = jax.process_index()
        super().__init__(kind)

    def on_mesh(self, array, spec=P("d")):
        return jax.make_array_from_callback((8,), NamedSharding(self.mesh, spec), lambda index: array[index])

    def same(self, array, expected):
        """Compare what this process has of an array with its part of the whole."""
        for shard in finish(array).addressable_shards:
            same(shard.data, np.asarray(expected)[shard.index], rtol=1e-6)


@program
def shard_map_calls_each_processs_function_on_its_own_shards(on):
    for op in OPS.values():
        log = Log(lambda x: x + 10 * on.me)  # each process has its own function
        out = on.shard_map(lambda x: op(log, [x], F))(on.x)
        on.same(out, FULL + 10 * (np.arange(8) // 4))
        assert sorted(log.seen) == SHARDS[2 * on.me : 2 * on.me + 2]


@program
def jit_of_a_stateless_op_runs_in_each_process(on):
    log = Log()
    y = finish(jax.jit(lambda x: numpy_function(log, [x], F))(on.x))
    on.same(y + on.x, FULL * 3)  # usable eagerly
    assert log.seen == [FULL.tolist()] * len(log.seen)
    assert len(log.seen) <= 2
    assert log.seen or (on.me == 1 and jaxpyop._config.TRANSPORT == "callback")  # those run in the first process


@program
def jit_of_a_stateful_op_runs_once_in_the_first_process(on):
    for op in STATEFUL.values():
        log = Log()
        y = finish(jax.jit(lambda x: op(log, [x], F, output_shapes=(8,)))(on.x))
        on.same(y + on.x, FULL * 3)
        assert log.seen == ([FULL.tolist()] if on.me == 0 else [])


@program
def jit_gradient_of_a_stateful_op_is_right_or_refused(on):
    """The record is in the first process; the second one has other records of the same numbers."""
    if on.me == 1:
        [jax.vjp(lambda x: py_function(lambda x: x * 100, [x], F), jnp.ones(8)) for _ in range(100)]
    op = lambda x: py_function(lambda x: x**3, [x], F, stateful=True, output_shapes=(8,))
    try:
        out = finish(jax.jit(lambda x: jax.vjp(op, x)[1](x)[0])(on.x))
    except (NotImplementedError, jax.errors.JaxRuntimeError, ValueError) as error:
        assert "several processes" in str(error), error
    else:
        on.same(out, 3 * FULL**3)


@program
def programs_of_one_process(on):
    """On its own devices, each process does what it likes."""
    for op in OPS.values():
        log = Log(lambda x: x + on.me)
        same(finish(jax.jit(lambda x: op(log, [x], F))(jnp.asarray(FULL))), FULL + on.me)
        same(op(log, [FULL], F), FULL + on.me)
        assert log.seen == [FULL.tolist()] * 2


@program
def error_in_shard_map(on):
    for op in (numpy_function, py_func):
        expect_error(on.shard_map(lambda x: op(fail, [x], F, output_shapes=(2,))), on.x)
        shard_map_calls_each_processs_function_on_its_own_shards(on)


@program
def error_in_jit(on):
    """The process that did not run the body says so."""
    everywhere = jaxpyop._config.TRANSPORT == "auto"
    for op, own in ((numpy_function, on.me == 0 or everywhere), (py_func, on.me == 0)):
        f = jax.jit(lambda x: op(fail, [x], F))
        for _ in range(2):
            with pytest.raises((common.MyError, jax.errors.JaxRuntimeError, ValueError)) as caught, jaxpyop.reraise():
                finish(f(on.x))
            text = "mine" if own else r"'fail' failed.*(another|other|first) process"
            assert re.search(text, str(caught.value)), caught.value
    jit_of_a_stateful_op_runs_once_in_the_first_process(on)


def main(rank, port, kind, transport):
    jaxpyop._config.TRANSPORT = transport
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(rank))
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, 4, 2)
    many_programs.main(common.PROGRAMS, Devices(kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
