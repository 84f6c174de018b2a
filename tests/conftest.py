"""Options, fixtures and the choice of tests that all test files share.

jaxpyop is imported first. Its guard has to be in place before JAX makes its CPU client.
"""

import functools
import gc
import itertools
import os
import sys
import threading
import zlib

import jaxpyop  # isort: skip

import jax
import pytest
from hypothesis import HealthCheck, settings
from jax.experimental.compilation_cache import compilation_cache

from jaxpyop._jaxcore import PORTABLE
from tests.shared.selection import is_quick
from tests.shared.util import ROUTES
from tests.shared.without import needs_flatbuffers, reason_to_skip

# Many bodies in the tests look at their inputs by `np.asarray` and `tolist`. test_constants.py tests the warning.
jaxpyop.config.constants = "allow"


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run all tests instead of a selection")
    parser.addoption("--rest", action="store_true", help="run the tests that the selection leaves out")


def pytest_configure(config):
    """Runs everything in files that are named on the command line."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if named or os.environ.get("JAXPYOP_TEST_ALL") or os.environ.get("JAXPYOP_TEST_LONG"):
        config.option.all = True
    share_compiled_programs(config)
    if not os.environ.get("JAXPYOP_TEST_LONG"):
        share_contexts()
    if not (config.option.all or config.option.rest) or os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS"):
        compile_quickly()
    settings.register_profile(
        "jaxpyop",
        database=None,
        deadline=None,
        derandomize=True,
        max_examples=int(
            os.environ.get("JAXPYOP_TEST_EXAMPLES", "20" if config.option.all or config.option.rest else "4")
        ),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    settings.load_profile("jaxpyop")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process more than there are cores, because the tests wait for other processes in a sixth of their time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else cores + 1


def pytest_collection_finish(session):
    """Freezes the objects that exist before the first test, because many tests collect garbage.

    Automatic collections are rarer than Python's default, because they take an eighth of the time of tests that trace.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Calls the test from a frame with room behind it, see `with_room_for_frames`."""
    if not isinstance(item, pytest.Function) or is_random(item):
        return (yield)
    test = item.obj
    item.obj = functools.partial(with_room_for_frames, test)
    try:
        return (yield)
    finally:
        item.obj = test


def with_room_for_frames(test, **arguments):
    """Runs a test where calls of functions do not ask the system for memory.

    Python keeps the frames of functions in chunks of 16 KB. It makes a chunk at the call that goes beyond the last one,
    and frees it when that call returns. A recursion that stands at such a place does this at each call, which takes
    five times the time of the call. This function has such a large frame that its chunk has 900 KB to spare.
    """
    return test(**arguments)


with_room_for_frames.__code__ = with_room_for_frames.__code__.replace(co_stacksize=140_000)


def share_compiled_programs(config):
    """Keeps compiled programs beside pytest's own cache, because XLA takes half of the time of the tests."""
    if cache := getattr(config, "cache", None):
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir(f"jax-{jax.__version__}")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def share_contexts():
    """Lets JAX lower all programs of a thread in one MLIR context.

    JAX makes a context for each program that it lowers, also for a single operation. That is a fifth of the time of the
    tests. A context holds nothing but types and constants that programs may share.
    """
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    if make_context := getattr(mlir, "make_ir_context", None):
        of_thread = threading.local()

        def shared_context():
            # JAX may lower a program while it lowers another one. A program of its context would become a part of that.
            if is_lowering():
                return make_context()
            if not hasattr(of_thread, "context"):
                of_thread.context = make_context()
            return of_thread.context

        def is_lowering():
            try:
                return mlir.ir.Context.current is not None
            except ValueError:
                return False

        mlir.make_ir_context = shared_context


def compile_quickly():
    """Makes XLA compile as fast as it can. Before JAX 0.11 its new code for fusions takes twice as long as the old."""
    jax.config.update("jax_disable_most_optimizations", True)
    if jax.__version_info__ < (0, 11):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Says what a run has shown: nothing, after a failure."""
    if exitstatus == pytest.ExitCode.OK and not config.option.all and not config.option.rest:
        terminalreporter.line("")
        terminalreporter.line(
            "A selection of the tests passed. It covers every promise once. To run all tests: python -m pytest --all"
        )


def pytest_collection_modifyitems(config, items):
    """Chooses the tests to run.

    - Without options: a selection, see `selection.py`.
    - With --all, or for files named on the command line: all tests. A table over three or more parameters keeps
      enough rows to cover every pair of values.
    - With --rest: the tests of --all that are not in the selection.
    - With JAXPYOP_TEST_ALL=1: every combination. With JAXPYOP_TEST_LONG=1: the tests marked as long as well.
    - With JAXPYOP_PORTABLE=1: no tests of what public JAX does not have, see `without.py`.
    """
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        lacking = reason_to_skip(path, getattr(item, "originalname", item.name)) if PORTABLE else None
        if reason := lacking or needs_flatbuffers(path, item.name):
            item.add_marker(pytest.mark.skip(reason=reason))
    if not os.environ.get("JAXPYOP_TEST_LONG"):
        drop(config, items, {item for item in items if item.get_closest_marker("long")})
    if not os.environ.get("JAXPYOP_TEST_ALL"):
        selected = selection(items)
        whole = (config.option.all or config.option.rest) and without(items, uncovered(items, together=2))
        if config.option.rest:
            whole = without(whole, {item for item in selected if not is_random(item)})
        drop(config, items, set(items) - set(whole or selected))


def selection(items):
    """The tests that run without options."""
    found = [item for item in items if in_selection(item)]
    found = without(found, other_ways(found))
    return without(found, uncovered(found, together=1))


def other_ways(items):
    """For each test, all routes, transports, functions or tapes except one, which varies from test to test."""
    for name in ("route", "transport", "api", "tape"):
        tables = {}
        for item in items:
            if name in (parameters := parameters_of(item)):
                ways = tables.setdefault((item.module.__name__, item.originalname), {})
                ways.setdefault(id(parameters[name]), []).append(item)
        for test, ways in tables.items():
            kept = zlib.crc32(repr((test, name)).encode()) % len(ways)
            yield from itertools.chain(*(cases for i, cases in enumerate(ways.values()) if i != kept))


def parameters_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def in_selection(item):
    """Whether the selection may contain this test."""
    case = getattr(item, "callspec", None)
    return is_quick(item.path.name, getattr(item, "originalname", item.name), case.id if case else "")


def is_random(item):
    """Whether hypothesis makes the test's inputs. The selection has fewer of them."""
    return getattr(item.obj, "is_hypothesis_test", False)


def without(items, gone):
    gone = set(gone)
    return [item for item in items if item not in gone]


def drop(config, items, gone):
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = without(items, gone)


def uncovered(items, together):
    """The cases that can go from tables over more than `together` parameters, if all `together` values stay covered."""
    tables = {}
    for item in items:
        parameters = parameters_of(item)
        if len(parameters) > together:
            values = [(name, id(value)) for name, value in sorted(parameters.items())]
            table = tables.setdefault((item.module.__name__, item.originalname), {})
            table[item] = set(itertools.combinations(values, together))
    kept = set().union(*map(covering, tables.values()))
    return [item for table in tables.values() for item in table if item not in kept]


def covering(table):
    """A small set of keys whose values together have every member. Equal tables give equal sets."""
    missing, chosen = set().union(*table.values()), []
    bound = max(map(len, table.values()))
    while missing:
        # The keys that add most come first. A key can only add less later on.
        for key, pairs in table.items():
            if len(pairs & missing) >= bound:
                chosen.append(key)
                missing -= pairs
        bound -= 1
    return chosen


@pytest.fixture(params=["auto", "callback"])
def transport(request):
    """Both ways from a compiled program to the host."""
    with jaxpyop.config.override(transport=request.param):
        yield request.param


@pytest.fixture(params=list(ROUTES.values()), ids=list(ROUTES))
def route(request):
    """A way to run a program: directly, or under jit with each transport."""
    with jaxpyop.config.override(transport=request.param.transport):
        yield request.param


@pytest.fixture
def compiled_here():
    """Switches the cache of compiled programs off, because a cached program keeps its first names."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def strict_promotion():
    """Strict promotion alone."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def checked():
    """Strict promotion and tracer-leak checks."""
    with jax.numpy_dtype_promotion("strict"), jax.checking_leaks():
        yield


@pytest.fixture
def x64():
    """64-bit types for one test."""
    with jax.enable_x64(True):
        yield
