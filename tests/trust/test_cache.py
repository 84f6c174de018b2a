"""A program from the persistent compilation cache calls the functions that this process traced, each in its place.

A cached program has no functions in it, only the numbers of their places; the process that loads it hands over its
own, in the order in which it traced them (JAX 0.12; before that, programs with callbacks are not cached).
"""

from __future__ import annotations

import collections
import json

import jax

from tests.shared.util import run_python

# One process: traces programs over some bodies, in some order, and prints what each call gives.
CODE = """
import json, sys
import jaxpyop, jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_compilation_cache_dir", {cache!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jaxpyop.config.transport = {transport!r}
hits = []
jax.monitoring.register_event_listener(lambda name, **_: "cache_hits" in name and hits.append(name))
F = jnp.float32
def body(by):
    def op(x):
        return np.asarray(x) * by
    return op
APIS = {{
    "numpy_function": jaxpyop.numpy_function,
    "py_func": jaxpyop.py_func,
    "py_function": lambda f, x, t: jaxpyop.py_function(lambda x: f(x), x, t, stateful=True),
}}
def results(api):
    program = jax.jit(lambda x: [api(body(by), [x], F) for by in {bodies!r}])
    compiled = program.lower(1.0)
    before = len(hits)
    compiled = compiled.compile()
    found = len(hits) - before
    first = [float(y) for y in compiled(1.0)]
    assert first == [float(y) for y in program(1.0)]
    def branches(x):
        return jax.lax.cond(x > 0, lambda: api(body({bodies!r}[0]), [x], F), lambda: api(body({bodies!r}[-1]), [x], F))
    return first, [float(jax.jit(branches)(1.0)), float(jax.jit(branches)(-1.0))], found
slope = jax.jit(jax.grad(lambda x: jaxpyop.py_function(lambda x: x * {bodies!r}[0], [x], F)))
print(json.dumps([float(slope(1.0)), {{name: results(api) for name, api in APIS.items()}}]))
"""

# What each of the processes, one after the other with one cache, multiplies by.
PROCESSES = {
    "first": [2.0, 3.0],
    "swapped": [3.0, 2.0],
    "one removed": [3.0],
    "others of the same name": [5.0, 7.0],
    "one more": [3.0, 2.0, 4.0],
}


def test_a_cached_program_calls_the_functions_of_this_process(transport, tmp_path):
    hits = collections.Counter()
    for name, bodies in PROCESSES.items():
        code = CODE.format(cache=str(tmp_path), transport=transport, bodies=bodies)
        slope, by_api = json.loads(run_python(code).stdout.splitlines()[-1])
        assert slope == bodies[0], name
        for api, (first, cond, found) in by_api.items():
            assert first == bodies, (name, api)
            assert cond == [bodies[0], -bodies[-1]], (name, api)
            hits[api] += found
    # The second and the fourth process find the program of the first: the same text, of other functions. The
    # program of py_function is that of py_func, which is there before it.
    found = {"numpy_function": 2, "py_func": 2, "py_function": 5}
    assert hits == (found if jax.__version_info__ >= (0, 12) else dict.fromkeys(found, 0))
