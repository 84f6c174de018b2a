"""Several devices in one process: the programs of device_programs.py, and errors.

This file is also the program of a process with four CPU devices, which runs
what is asked for and reports line by line. A program that hangs ends that
process, and another goes on with the next.
"""

# ruff: noqa: B023  # what a loop makes is called in the same turn

from __future__ import annotations

import faulthandler
import functools
import json
import os
import subprocess
import sys
import traceback

import jaxpyop

import jax  # isort: skip
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.shared import workers
from tests.shared.device_programs import jit_stateful_exactly_one_whole_call
from tests.shared.devices import (
    FULL,
    PROGRAMS,
    Devices,
    F,
    Log,
    expect_error,
    fail,
    fail_on_the_first_shard,
    finish,
    numpy_function,
    program,
    same,
    stateful,
    works_again,
)
from tests.shared.util import on_devices

LIMIT = 20  # seconds for one program; it needs less than one


# ----------------------------------------------------------------------- errors


ERRORS = {
    "jit": lambda on, op: jax.jit(lambda x: op(fail, [x], F, output_shapes=(8,))),
    "jit_with_several_results": lambda on, op: jax.jit(lambda x: op(fail, [x], (F, F), output_shapes=((8,), ()))),
    "jit_before_a_collective": lambda on, op: jax.jit(lambda x: (op(fail, [x], F, output_shapes=(8,)) + x).sum()),
    "jit_of_an_unused_result": lambda on, op: jax.jit(lambda x: (stateful(fail, [x], F), x)[1]),
    "jit_without_results": lambda on, op: jax.jit(lambda x: (op(fail, [x], None), x)[1]),
    "jit_of_scan": lambda on, op: jax.jit(
        lambda x: lax.scan(lambda c, _: (op(fail, [c], F, output_shapes=(8,)), None), x, None, length=3)[0]
    ),
    "jit_of_cond": lambda on, op: jax.jit(
        lambda x: lax.cond(x.sum() > 1, lambda x: op(fail, [x], F, output_shapes=(8,)), lambda x: x, x)
    ),
    "jit_of_vmap": lambda on, op: jax.jit(jax.vmap(lambda x: op(fail, [x], F, output_shapes=()))),
    "jit_of_parallel_vmap": lambda on, op: jax.jit(
        jax.vmap(lambda x: op(fail, [x], F, output_shapes=(), vmap_method="parallel"))
    ),
    "shard_map": lambda on, op: on.shard_map(lambda x: op(fail, [x], F, output_shapes=(2,))),
    "shard_map_of_one_shard": lambda on, op: on.shard_map(
        lambda x: op(fail_on_the_first_shard, [x], F, output_shapes=(2,))
    ),
    "shard_map_before_a_collective": lambda on, op: on.shard_map(
        lambda x: lax.psum(op(fail, [x], F, output_shapes=(2,)), "d"), out_specs=P()
    ),
    "shard_map_of_vmap": lambda on, op: on.shard_map(jax.vmap(lambda x: op(fail, [x], F, output_shapes=()))),
    "shard_map_of_scan": lambda on, op: on.shard_map(
        lambda x: lax.scan(lambda c, _: (op(fail, [c], F, output_shapes=(2,)), None), x, None, length=3)[0]
    ),
}


def error_program(make):
    def run(on):
        for op in (numpy_function, stateful):
            expect_error(make(on, op), on.x)
        works_again(on, op)

    return run


PROGRAMS |= {f"error_in_{name}": error_program(make) for name, make in ERRORS.items()}


@program
def error_in_a_backward_pass(on):
    for options in ({}, {"stateful": True}):
        square = lambda x: numpy_function(lambda x: x**2, [x], F, vjp=fail, **options)
        expect_error(jax.jit(jax.grad(lambda x: square(x).sum())), on.x)
        expect_error(jax.jit(jax.grad(lambda x: on.shard_map(square)(x).sum())), on.x)
        works_again(on, stateful)


# -------------------------------------------------------- the table of the README


def check_jit_stateless(on):
    log = Log()
    same(finish(jax.jit(lambda x: numpy_function(log, [x], F))(on.x)), FULL * 2)
    assert log.seen == [FULL.tolist()]


def check_shard_map(on):
    log = Log()
    finish(on.shard_map(lambda x: numpy_function(log, [x], F))(on.x))
    assert sorted(log.seen) == FULL.reshape(4, 2).tolist()


ROWS = {
    "`jit` over several devices, stateless": (
        check_jit_stateless,
        "the process",
        "once, on the whole array",
        "any",
    ),
    "`jit` over several devices, stateful": (
        jit_stateful_exactly_one_whole_call,
        "the process",
        "once, on the whole array",
        "any",
    ),
    "`shard_map`": (check_shard_map, "the process", "once per shard", "any; shards run at the same time"),
}
PROGRAMS |= {f"row_{k}": check for k, (check, *_) in enumerate(ROWS.values())}

# ------------------------------------------------------- the process that runs them


def main(kind, names):
    assert len(jax.devices()) == 4
    on = Devices(kind)
    for name in names:
        print(json.dumps({"begins": name}), flush=True)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        error = None
        try:
            what, transport = name.split("/")
            with jaxpyop.config.override(transport=transport):
                PROGRAMS[what](on)
        except BaseException:
            error = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"name": name, "error": error}), flush=True)


def start(kind, names):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAXPYOP_", "JAX_", "NPROC"))}
    # What this JAX lacks, the other process has to lack too.
    env |= {k: v for k, v in os.environ.items() if k == "JAXPYOP_PORTABLE"}
    env |= on_devices(4) | {"JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-W", "error", __file__, kind, *names]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)


ROUTES = [("Auto", "auto"), ("Auto", "callback"), ("Explicit", "auto")]
CASES = [(kind, name, transport) for kind, transport in ROUTES for name in PROGRAMS]


def run_all(kind, names):
    """Every program's error, or None; a hanging one costs a process."""
    errors = {}
    while left := [name for name in names if name not in errors]:
        done = start(kind, left)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        errors |= {line["name"]: line["error"] for line in lines if "name" in line}
        begun = [line["begins"] for line in lines if "begins" in line]
        if not begun or (begun[-1] in errors and done.returncode):
            raise AssertionError(done.stderr[-5000:])
        if begun[-1] not in errors:
            errors[begun[-1]] = f"hung, or died, status {done.returncode}\n{done.stderr[-5000:]}"
    return errors


@pytest.fixture(scope="module")
def outcomes(request):
    """What became of the programs that were chosen, by the kind of the axes."""
    cases = [
        item.callspec.params
        for item in request.session.items
        if getattr(item, "function", None) is test_on_four_devices
    ]

    @functools.cache
    def of(kind):
        return run_all(kind, [f"{case['name']}/{case['transport']}" for case in cases if case["kind"] == kind])

    return of


@pytest.mark.parametrize(("kind", "name", "transport"), CASES, ids=["-".join(case) for case in CASES])
def test_on_four_devices(kind, name, transport, outcomes):
    error = outcomes(kind)[f"{name}/{transport}"]
    assert error is None, error


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_the_readme(row):
    """What the cells say is run above."""
    assert workers.scaling_table()[row] == ROWS[row][1:]


def test_a_failing_program_is_seen(monkeypatch):
    """The checker itself."""
    monkeypatch.setitem(PROGRAMS, "row_0", None)  # only here, not in the process that runs it
    done = start("Auto", ["row_0/auto", "no such program/auto"])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("error") for line in lines[:2]] == [None, None]
    assert "no such program" in lines[3]["error"]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
