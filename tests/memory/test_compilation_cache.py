"""JAX's persistent compilation cache: a program from it calls the functions of this process, each in its place.

A cached program has no functions in it, only the numbers of their places. The process that loads it hands over its own,
in the order in which it traced them. (Before JAX 0.12, programs with callbacks are not cached.)
"""

import collections
import json

import jax
import pytest

from tests.shared.processes import run_python

pytestmark = pytest.mark.slow

# One process: traces programs over some functions, in some order, and prints what each call gives.
CODE = """
import json, sys
import jaxpyop, jax, jax.numpy as jnp, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda name, **_: "cache_hits" in name and hits.append(name))
F = jnp.float32
FACTORS = {factors}
def body(by):
    def op(x):
        return np.asarray(x) * by
    return op
APIS = {
    "numpy_function": jaxpyop.numpy_function,
    "py_func": jaxpyop.py_func,
    "py_function": lambda f, x, t: jaxpyop.py_function(lambda x: f(x), x, t, stateful=True),
}
def results(api):
    program = jax.jit(lambda x: [api(body(by), [x], F) for by in FACTORS])
    before = len(hits)
    compiled = program.lower(1.0).compile()
    found = len(hits) - before
    assert [float(y) for y in compiled(1.0)] == [float(y) for y in program(1.0)] == FACTORS
    return found
scaled = lambda x: jaxpyop.py_function(lambda x: x * FACTORS[0] if x > 0 else x, [x], F)
traced = lambda x: jaxpyop.py_function(lambda x: x * FACTORS[0] if x > 0 else x, [x], F, mode="traced")
ruled = lambda x: jaxpyop.numpy_function(body(1.0), [x], F, vjp=lambda i, o, c: c * FACTORS[0])
slopes = [float(jax.jit(jax.grad(f))(1.0)) for f in (scaled, traced, ruled)]
print(json.dumps([slopes, {name: results(api) for name, api in APIS.items()}]))
"""
# What each of the processes, one after the other with one cache, multiplies by.
ALL = {"first": [2.0, 3.0], "one removed": [3.0], "others, swapped": [7.0, 5.0]}
TWO = {name: ALL[name] for name in ("first", "others, swapped")}


@pytest.mark.parametrize(("transport", "processes"), [("auto", ALL), ("callback", TWO)], ids=["auto", "callback"])
def test_a_cached_program_calls_the_functions_of_this_process(transport, processes, tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    hits = collections.Counter()
    script = tmp_path / "program.py"  # traced mode reads the source of a function
    for name, factors in processes.items():
        script.write_text(CODE.replace("{factors}", str(factors)))
        done = run_python(f"import runpy; runpy.run_path({str(script)!r})", JAXPYOP_TRANSPORT=transport, **cache)
        slopes, by_api = json.loads(done.stdout.splitlines()[-1])
        assert slopes == [factors[0]] * 3, name
        hits.update(by_api)
    # The process with others finds the program of the first: the same text, of other functions. The program of
    # py_function is that of py_func, which is there before it.
    found = {"numpy_function": 1, "py_func": 1, "py_function": len(processes)}
    assert hits == (found if jax.__version_info__ >= (0, 12) else dict.fromkeys(found, 0))
