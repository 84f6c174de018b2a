"""What the benchmark compares: groups of cases that do the same work, with our own case first.

Each subject has a file: `calls`, `cut`, `programs`, `batches`, `gradients`, `traced`, `others`, and `runs` of thousands
of steps, which take minutes. `case` holds what they share.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from tests.bench.cases import batches, calls, cut, gradients, others, programs, runs, traced
from tests.bench.cases.case import Case as Case
from tests.bench.cases.case import Group as Group

SUBJECTS: dict[str, list[Callable[[], Group]]] = {
    "calls": [
        calls.small_calls,
        calls.stateful_calls,
        calls.ordered_calls,
        calls.ordered_loops,
        calls.direct_calls,
        calls.fresh_calls,
        calls.many_inputs,
        calls.large_calls,
        calls.out_calls,
    ],
    "cut": cut.GROUPS,
    "programs": [programs.tracing, programs.lowering],
    "batches": [
        batches.batches,
        batches.batches_of_floats,
        batches.batches_on_threads,
        batches.waiting_batches,
    ],
    "gradients": [
        lambda: gradients.gradients("log-Huber gradient, first branch", 1.0, 2.0),
        lambda: gradients.gradients("log-Huber gradient, second branch", 3.0, 2.0),
        lambda: gradients.gradients("the same, in both inputs", 3.0, 2.0, both=True),
        gradients.many_primitives,
        gradients.large_arrays,
        gradients.varying_loop,
        gradients.data_without_tangents,
        gradients.direct_gradients,
        gradients.fresh_lengths,
    ],
    "traced": [
        lambda: traced.traced("mode='traced', an if on a value", lambda f: f),
        lambda: traced.traced("the same, gradient", jax.grad),
    ],
    "others": [others.other_frameworks],
    "runs": [runs.training_run, runs.memory_run, runs.process_pool, runs.several_devices],
}
# What is measured if no subject is named: all but those that take minutes.
QUICK = [subject for subject in SUBJECTS if subject != "runs"]
