"""Native calls: what a program shares, keeps and frees, settings, threads, devices, and options that need Python."""

import concurrent.futures
import contextvars
import functools
import gc
import logging
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop import numpy_function
from tests.shared.processes import run_python

numba = pytest.importorskip("numba", reason="needs the extra `native`")
from tests.native import kernels  # noqa: E402
from tests.native.kernels import F, V  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::numba.NumbaPendingDeprecationWarning")


@numba.njit
def wraps(x, n):
    return x * 0 + n * 2**62 * 4


@numba.njit
def takes_sign(x, n):
    return x * 0 + np.copysign(1.0, n)


CONSTANTS = {"1 and 1.0": (wraps, 1, 1.0), "0.0 and -0.0": (takes_sign, 0.0, -0.0)}


@pytest.mark.slow
@pytest.mark.parametrize(("func", "one", "other"), CONSTANTS.values(), ids=CONSTANTS)
def test_equal_constants_of_other_types_have_kernels_of_their_own(func, one, other):
    run = lambda x: [numpy_function(functools.partial(func, n=n), [x], F) for n in (one, other)]
    first, second = jax.jit(run)(V)
    np.testing.assert_array_equal(first, func(V, one).astype(F))
    np.testing.assert_array_equal(second, func(V, other).astype(F))
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_a_function_that_is_compiled_again():
    scope = {"G": 2.0}
    exec("def times(x):\n    return x * G", scope)
    times = numba.njit(scope["times"])
    run = lambda: jax.jit(lambda x: numpy_function(times, [x], F))
    before = run()
    np.testing.assert_array_equal(before(V), 2 * V)
    scope["G"] = 3.0
    times.recompile()
    np.testing.assert_array_equal(run()(V), 3 * V)
    # A program keeps the code with which it was compiled.
    np.testing.assert_array_equal(before(V), 2 * V)


class Negative(functools.partial):
    def __call__(self, x):
        return -super().__call__(x)


@pytest.mark.slow
def test_a_partial_of_another_class_is_called():
    op = lambda x: numpy_function(Negative(kernels.inner), [x], F)
    np.testing.assert_array_equal(jax.jit(op)(V), -3 * V)


@pytest.mark.slow
def test_shards_of_four_devices_a_saved_program_and_the_check_under_settings():
    code = """
import jax, jaxpyop, jax.numpy as jnp, numpy as np, warnings
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxpyop._native.check import _found_out, state
from tests.native.kernels import draw, element_wise, outer
op = jaxpyop.numpy_function(Tout=jnp.float32)(outer)
x, mesh = jnp.arange(12.0).reshape(4, 3), jax.make_mesh((4,), ("a",))
run = jax.shard_map(lambda x: jax.vmap(op)(x), mesh=mesh, in_specs=P("a"), out_specs=P("a"))
with jaxpyop.report() as report:
    np.testing.assert_array_equal(jax.jit(run)(jax.device_put(x, NamedSharding(mesh, P("a")))), 3 * x + 3 * x[:, ::-1])
assert report.rows()[0]["route"] == "native", report
draws = jaxpyop.numpy_function(Tout=jnp.float32)(draw)
found = jax.jit(draws)(jax.device_put(x[:, 0], NamedSharding(mesh, P("a")))).addressable_shards
assert len(found) == 4 and all(np.array_equal(found[0].data, one.data) for one in found), found
product = jaxpyop.numpy_function(Tout=jnp.float32)(element_wise)
saved = jaxpyop.export(lambda x: op(x) + product(x + 1, x))(x[0])
loaded = jaxpyop.load(saved.to_bytes(), allow=["tests.native.kernels"])
with jaxpyop.report() as report:
    np.testing.assert_array_equal(jax.jit(loaded)(x[0]), 3 * x[0] + 3 * x[0, ::-1] + (x[0] + 1) * x[0])
assert "native" in {row["route"] for row in report.rows()}, report
warnings.simplefilter("error")
for setting in (jax.transfer_guard("disallow"), jax.set_mesh(mesh), jax.debug_nans(True), jax.enable_x64(True)):
    with setting:
        _found_out.cache_clear()
        assert "passed" in state(), (setting, state())
"""
    run_python(code, XLA_FLAGS="--xla_force_host_platform_device_count=4")


@pytest.mark.slow
def test_inputs_of_a_kernel_that_raises_are_freed():
    op = jax.jit(lambda x: numpy_function(kernels.raises_with_values, [x], F))
    x, page = jnp.ones(2_000_000), os.sysconf("SC_PAGE_SIZE") / 1e6
    megabytes = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * page
    for count in (3, 30):
        before = megabytes()
        for _ in range(count):
            with pytest.raises(jax.errors.JaxRuntimeError, match="above zero"):
                jax.block_until_ready(op(x))
    # An exception and its frames are in a cycle.
    gc.collect()
    assert megabytes() - before < 100


# Options that send the call through Python.
OPTIONS = {
    "stateful": {"stateful": True},
    "on_error": {"on_error": 0, "output_shapes": (3,)},
    "executor": {"executor": concurrent.futures.ThreadPoolExecutor(1)},
    "when": {"when": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_that_need_python_are_right(options):
    op = lambda x: numpy_function(kernels.branches, [x], F, **options)
    np.testing.assert_array_equal(jax.jit(op)(jnp.asarray(V)), 2 * V)


@pytest.mark.slow
def test_past_a_number_of_kernels_calls_go_through_python(monkeypatch, caplog):
    from jaxpyop._native import kernels as compiled

    monkeypatch.setattr(compiled, "_MOST_KERNELS", 0)
    with caplog.at_level(logging.INFO, "jaxpyop"):
        np.testing.assert_array_equal(jax.jit(lambda x: numpy_function(kernels.inner, [x], F))(V), 3 * V)
    assert "0 kernels were compiled" in caplog.text


@pytest.mark.slow
def test_no_import_of_numba_without_a_function_of_its_own():
    code = "import jax, sys, jaxpyop, numpy as np, jax.numpy as jnp\n"
    code += "jax.jit(lambda x: jaxpyop.numpy_function(np.sin, [x], jnp.float32))(1.0)\n"
    run_python(code + "assert 'numba' not in sys.modules and 'jaxpyop._native.frame' not in sys.modules")


@pytest.mark.slow
def test_it_can_be_turned_off_and_the_doctor_says_so():
    code = """
import jax, numba, jaxpyop, numpy as np, jax.numpy as jnp
from jaxpyop.__main__ import main
double = numba.njit(lambda x: x * 2)
with jaxpyop.report() as report:
    assert float(jax.jit(lambda x: jaxpyop.numpy_function(double, [x], jnp.float32(0)))(1.0)) == 2
assert report.rows()[0]["route"] == "buffer"
main(["doctor"])
"""
    assert "native calls" in run_python(code, JAXPYOP_NATIVE="0").stdout


@pytest.mark.slow
def test_many_threads_call_at_once():
    op = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, c: numpy_function(kernels.branches, [c], F) * 0.5, x))
    wanted = jax.block_until_ready(op(jnp.asarray(V)))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for found in pool.map(lambda k: op(jnp.asarray(V)), range(200)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_threads_make_the_first_native_calls_and_call_a_kernel_of_numbas_own_threads():
    code = """
import concurrent.futures, threading, jax, numba, jaxpyop, numpy as np, jax.numpy as jnp, warnings
warnings.simplefilter("error", RuntimeWarning)
@numba.njit(parallel=True)
def total(x):
    found = 0.0
    for i in numba.prange(x.size):
        found += x[i]
    return found
ops = [jaxpyop.numpy_function(Tout=jnp.float32(0))(f) for f in (total, numba.njit(lambda x: x.sum()))]
f, g = map(jax.jit, ops)
x, all_here = jnp.ones(1000), threading.Barrier(8)
def both(k):
    if k < 8:
        all_here.wait()
    assert float(g(x)) == float(f(x)) == 1000
with concurrent.futures.ThreadPoolExecutor(8) as pool, jaxpyop.report() as report:
    list(pool.map(both, range(50)))
assert {row["op"]: row["route"] for row in report.rows()} == {"total": "buffer", "lambda": "native"}, report
"""
    run_python(code)


@pytest.mark.slow
def test_a_sweep_goes_on_in_another_process_with_and_without_native_calls(tmp_path):
    code = f"""
import numpy as np, jax.numpy as jnp, jaxpyop
from tests.native.kernels import element_wise
def stop(done, total):
    if done == 2 * AFTER:
        raise KeyboardInterrupt
f = lambda x: jaxpyop.numpy_function(element_wise, [x, x + 1], jnp.float32(0))
try:
    jaxpyop.map_batches(f, np.arange(8, dtype=np.float32), batch_size=2, checkpoint={str(tmp_path)!r}, version="1",
                        progress=stop)
except KeyboardInterrupt:
    print("stopped")
"""
    for after, native in ((1, "1"), (2, "1"), (3, "0"), (5, "1")):
        done = run_python(f"AFTER = {after}" + code, JAXPYOP_NATIVE=native)
        assert done.stdout == ("stopped\n" if after < 4 else "")


@pytest.mark.slow
def test_a_program_that_is_gone_leaves_no_block():
    from jaxpyop._native import frame

    f = jax.jit(lambda x: numpy_function(kernels.loop, [x], F(0)))
    jax.block_until_ready(f(jnp.asarray(V)))
    newest = max(frame._blocks)
    del f
    jax.clear_caches()
    gc.collect()
    assert newest not in frame._blocks


@pytest.mark.slow
def test_a_program_that_is_gone_before_its_run_began_leaves_the_run_its_block():
    from jaxpyop._native import frame

    x = jnp.ones((700, 700))
    busy = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda i, c: c @ c / 700, x))
    f = jax.jit(lambda x: numpy_function(kernels.inner, [x], np.float32))
    jax.block_until_ready((f(x), busy(x)))
    newest, found = max(frame._blocks), f(busy(x))
    del f
    jax.clear_caches()
    gc.collect()
    # JAX 0.10 waits for the input where it calls the program.
    assert newest in frame._blocks or found.is_ready()
    np.testing.assert_array_equal(found, 3 * x)


@pytest.mark.slow
def test_a_kernel_of_numbas_own_threads_that_numba_loads_from_its_cache(tmp_path):
    code = """
import jax, numba, jaxpyop, numpy as np, jax.numpy as jnp
from tests.native.kernels import parallel
func = numba.njit(parallel=True, cache=True)(parallel.py_func)
with jaxpyop.report() as report:
    assert float(jax.jit(lambda x: jaxpyop.numpy_function(func, [x], jnp.float32(0)))(np.ones(4, np.float32))) == 4
print(report.rows()[0]["route"], func.stats.cache_hits.total())
"""
    printed = [run_python(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout for _ in range(2)]
    assert printed == ["buffer 0\n", "buffer 1\n"]


@pytest.mark.slow
def test_numbers_of_64_bits():
    with jax.enable_x64(True):
        op = lambda x: numpy_function(kernels.loop, [x], np.float64(0))
        x = jnp.asarray(np.array([0.1, 0.2]))
        assert float(jax.jit(op)(x)) == float(op(x)) == kernels.loop(np.asarray(x))


@pytest.mark.slow
def test_partials_hold_no_arrays():
    op = lambda x: numpy_function(functools.partial(kernels.nested, pair=(V, F(2))), [x], F)
    np.testing.assert_array_equal(jax.jit(op)(jnp.asarray(V)), 3 * V)


@pytest.mark.slow
def test_python_inside_of_numba_sees_the_context_of_the_caller():
    """Also on XLA's threads, to which the program gives some of these calls."""
    op = numpy_function(Tout=F)(kernels.calls_what_enters_python)
    program = jax.jit(lambda m: jnp.stack([op((m @ (m + k))[0]).sum() for k in range(12)]))
    ones = jnp.ones((300, 300))

    def run():
        kernels.WIDTH.set(5.0)
        return program(ones)

    wanted = [300 * (5 * 300 * (1 + k) + 1) for k in range(12)]
    np.testing.assert_array_equal(contextvars.copy_context().run(run), wanted)
