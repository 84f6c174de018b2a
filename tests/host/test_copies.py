"""Inputs are private copies, or views of one call with `copy=False`."""

from __future__ import annotations

import concurrent.futures
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpyop._host import memory
from tests.shared.util import (
    every_api,
    every_numpy_api,
    numpy_function,
    py_func,
    py_function,
)

F = jnp.float32


# --------------------------------------------------------------- private copies

BIG = 200_000  # bytes far above any threshold of small arrays


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
@every_numpy_api
def test_inputs_are_private_writable_contiguous(api, n, route):
    x = jnp.arange(n, dtype=F)
    keep = np.array(x)

    def body(x):
        assert type(x) is np.ndarray
        assert x.flags.writeable
        assert x.flags.c_contiguous
        assert x.flags.aligned
        x[0] = 100.0
        return x

    y = route(lambda x: api(body, [x], F), x)
    np.testing.assert_array_equal(x, keep)
    assert y[0] == 100
    np.testing.assert_array_equal(y[1:], keep[1:])


CHANGES = {
    "shape": lambda x: setattr(x, "shape", (1, *x.shape)),
    "resize": lambda x: x.resize((x.size,), refcheck=False),
    "read-only": lambda x: x.setflags(write=False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("n", [3, BIG])
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_an_array_that_a_body_changed_in_place_is_not_used_again(change, n, route):
    seen = []

    def body(x):
        seen.append((x.shape, x.flags.carray, float(x[0, 0])))
        change(x)

    op = lambda x: py_func(body, [x], None)
    f = jax.jit(op) if route.jit else op
    for i in range(4):
        f(jnp.full((n, 2), i, F))
        jax.effects_barrier()
    assert seen == [((n, 2), True, float(i)) for i in range(4)]


def test_the_callers_numpy_array_is_unchanged(route):
    x = np.array([1.0, 2.0], np.float32)

    def clear_first(x):
        x[0] = 0.0
        return x

    np.testing.assert_array_equal(route(lambda: py_func(clear_first, [x], F)), [0, 2])
    np.testing.assert_array_equal(route(lambda x: py_func(clear_first, [x], F), x), [0, 2])
    np.testing.assert_array_equal(x, [1, 2])


LAYOUTS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "strided": np.arange(10, dtype=np.float32)[::2],
    "reversed": np.arange(10, dtype=np.float32)[::-1],
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "read-only": np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32),
}


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_arrives_contiguous(x, route):
    def body(a):
        assert a.flags.c_contiguous
        assert a.flags.writeable
        assert a.flags.owndata or a.base is not x
        a += 1
        return a

    keep = x.copy()
    np.testing.assert_array_equal(route(lambda: py_func(body, [x], F)), keep + 1)
    np.testing.assert_array_equal(x, keep)


def test_layout_of_a_transpose_inside_the_program(transport):
    def body(a):
        assert a.flags.c_contiguous
        return a

    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.jit(lambda x: py_func(body, [x.T], F))(x), x.T)


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
@every_api
def test_inputs_that_the_body_keeps_stay_valid(api, n, route):
    kept = []

    def body(x):
        kept.append(x)
        return x

    f = (jax.jit if route.jit else lambda f: f)(lambda x: api(body, [x], F, stateful=True))
    for i in range(22):
        jax.block_until_ready(f(jnp.full(n, i, F)))
    assert [float(x[0]) for x in kept] == list(range(22))
    assert all((np.asarray(x) == i).all() for i, x in enumerate(kept))


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_a_kept_view_keeps_its_values(n, route):
    kept = []

    def body(x):
        kept.append(x[1:][::2])
        return x

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(body, [x], F))
    for i in range(22):
        jax.block_until_ready(f(jnp.full(n, i, F)))
    assert all((x == i).all() for i, x in enumerate(kept))


def test_a_kept_memoryview_or_torch_like_alias_keeps_its_values(route):
    kept = []

    def body(x):
        kept.append((memoryview(x), x.ctypes))
        return x

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(body, [x], F))
    for i in range(22):
        jax.block_until_ready(f(jnp.full(BIG, i, F)))
    assert [view[0] for view, _ in kept] == list(range(22))


def test_a_returned_large_input_is_not_overwritten_by_the_next_call(route):
    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(lambda x: x, [x], F))
    results = [f(jnp.full(BIG, i, F)) for i in range(22)]
    assert all((np.asarray(y) == i).all() for i, y in enumerate(results))


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_the_body_may_change_what_it_returned(n, route):
    """A body's own buffer, returned and then changed by the next call."""
    buffer = np.zeros(n, np.float32)

    def body(x):
        buffer[:] = x
        return buffer

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(body, [x], F))
    results = []
    for i in range(5):
        results.append(jax.block_until_ready(f(jnp.full(n, i, F))))
    buffer[:] = -1
    assert [float(y[-1]) for y in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_py_function_may_return_its_own_numpy_buffer(n, route):
    buffer = np.zeros(n, np.float32)

    def body(x):
        buffer[:] = x
        return buffer

    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_function(body, [x], F, output_shapes=(n,)))
    results = []
    for i in range(5):
        results.append(jax.block_until_ready(f(jnp.full(n, i, F))))
    assert [float(y[-1]) for y in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n", [3, 50_000], ids=["small", "large"])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_vmap_gives_each_element_private_inputs(n, jit, transport):
    """Batched (x) and unbatched (y): writes reach no other element and no caller."""
    x, y = jnp.ones((4, n), F), jnp.ones(n, F)
    kept = []

    def body(x, y):
        assert x.flags.writeable
        assert y.flags.writeable
        assert (x == 1).all()
        assert (y == 1).all()
        kept.append((x, y))
        x[:] = 5
        y += len(kept)
        return x + y

    f = jax.vmap(lambda x, y: py_func(body, [x, y], F), in_axes=(0, None))
    f = jax.jit(f) if jit else f
    out = jax.block_until_ready(f(x, y))
    np.testing.assert_array_equal(out[:, 0], [7, 8, 9, 10])
    assert (np.asarray(x) == 1).all()
    assert (np.asarray(y) == 1).all()
    assert [float(b[0]) for _, b in kept] == [2, 3, 4, 5]
    first = list(kept)
    for _ in range(3):
        kept.clear()
        jax.block_until_ready(f(x, y))
    assert all((a == 5).all() for a, _ in first)
    assert [float(b[-1]) for _, b in first] == [2, 3, 4, 5]


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
@pytest.mark.parametrize("jit", [False, True], ids=["direct", "jit"])
def test_block_methods_give_private_inputs(method, jit, transport):
    x, y = jnp.ones((4, 3), F), jnp.ones(3, F)

    def body(x, y):
        assert x.flags.writeable
        assert y.flags.writeable
        assert y.flags.c_contiguous
        x[...] = 5
        y[...] = 6
        return x + y

    f = jax.vmap(lambda x, y: py_func(body, [x, y], F, vmap_method=method), in_axes=(0, None))
    assert (jax.block_until_ready((jax.jit(f) if jit else f)(x, y)) == 11).all()
    assert (x == 1).all()
    assert (y == 1).all()


def test_copies_in_a_scan(transport):
    kept = []

    def body(x):
        kept.append(x)
        x += 1
        return x

    def program(x):
        return jax.lax.scan(lambda c, _: (py_func(body, [c], F),) * 2, x, None, length=25)

    last, ys = jax.jit(program)(jnp.zeros(BIG, F))
    np.testing.assert_array_equal(ys[:, 0], np.arange(1, 26))
    assert all((x == i + 1).all() for i, x in enumerate(kept))
    assert last[-1] == 25


def test_threads_share_no_copies(transport):
    """Six threads in one compiled program; large arrays, which are recycled."""
    wrong = []

    def body(x):
        if not (x == x[0]).all():
            wrong.append(x[0])
        x += 1
        return x

    f = jax.jit(lambda x: numpy_function(body, [x], F))
    batched = jax.jit(jax.vmap(lambda x: numpy_function(body, [x], F)))

    def work(k):
        x = jnp.full(BIG, float(k))
        for _ in range(20):
            if not (np.asarray(f(x)) == k + 1).all() or not (np.asarray(batched(jnp.stack([x, x]))) == k + 1).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_donated_arguments(transport):
    kept = []
    f = jax.jit(lambda x: py_func(lambda x: kept.append(x) or x * 2, [x], F), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert float(f(jnp.full(BIG, 3.0))[0]) == 6
    assert (kept[0] == 3).all()


# ------------------------------------------------------------------- copy=False


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_lent_inputs_are_read_only(n, route):
    def body(x):
        assert type(x) is np.ndarray
        assert not x.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 1
        return x * 2

    x = jnp.arange(n, dtype=F)
    np.testing.assert_array_equal(route(lambda x: py_func(body, [x], F, copy=False), x), x * 2)


def test_lent_inputs_cannot_be_made_writable_into_the_caller(route):
    x = np.arange(3, dtype=np.float32)

    def body(x):
        assert not x.flags.writeable
        return x

    np.testing.assert_array_equal(route(lambda: py_func(body, [x], F, copy=False)), [0, 1, 2])
    assert x.flags.writeable, "the caller's own array stays writable"


def test_keeping_a_lent_input_directly_warns():
    kept = []
    with pytest.warns(RuntimeWarning, match=r"py_func 'append'.*kept an input that copy=False lends.*copy=True"):
        py_func(kept.append, [jnp.arange(3.0)], None, copy=False)


def test_keeping_a_lent_input_under_jit_warns(transport):
    kept = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.block_until_ready(
            jax.jit(lambda x: py_func(lambda x: kept.append(x) or x * 2, [x], F, copy=False))(jnp.arange(3.0))
        )
    assert [str(w.message) for w in caught if "kept an input that copy=False lends" in str(w.message)]


KEEPING_A_PART = {
    "slice": lambda x: x[1:],
    "element": lambda x: x[1, ...],
    "reshaped": lambda x: x.reshape(1, -1),
    "memoryview": memoryview,
}


@pytest.mark.parametrize("part", KEEPING_A_PART.values(), ids=KEEPING_A_PART)
def test_keeping_a_part_of_a_lent_input_warns(part, route):
    kept = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        route(lambda x: py_func(lambda x: kept.append(part(x)), [x], None, copy=False), jnp.arange(3.0))
    assert [str(w.message) for w in caught if "kept an input that copy=False lends" in str(w.message)]


def caught_and_named(x):
    try:
        raise KeyError
    except KeyError as error:
        caught = error  # noqa: F841
    return x * 2


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
def test_a_lent_input_that_only_garbage_holds_was_not_kept(n, route):
    x = jnp.ones(n)
    op = lambda x: py_func(caught_and_named, [x], F, copy=False)
    assert route(op, x).sum() == 2 * n
    assert route(jax.vmap(op), x[:, None]).sum() == 2 * n


class KeepsTasks(concurrent.futures.ThreadPoolExecutor):
    """It holds on to each task, as a log or a dashboard of tasks does."""

    def __init__(self):
        super().__init__(1)
        self.tasks = []

    def submit(self, func, /, *args, **kwargs):
        self.tasks.append(func)
        return super().submit(func, *args, **kwargs)


class KeepsJobs(concurrent.futures.Executor):
    """Workers that are no threads of ours, as far as can be seen."""

    def __init__(self):
        self.tasks = []

    def submit(self, func, /, *args, **kwargs):
        self.tasks.append(func)
        future = concurrent.futures.Future()
        future.set_result(func(*args, **kwargs))
        return future


@pytest.mark.parametrize("n", [3, BIG], ids=["small", "large"])
@pytest.mark.parametrize("pool", [KeepsTasks, KeepsJobs], ids=["threads", "workers"])
def test_an_executor_that_keeps_its_tasks_is_not_the_function(pool, n, route):
    with pool() as executor:
        op = lambda x: py_func(lambda x: x * 2, [x], F, copy=False, executor=executor)
        assert route(op, jnp.ones(n)).sum() == 2 * n
        assert route(jax.vmap(op), jnp.ones((3, n))).sum() == 6 * n
        assert executor.tasks


def test_not_keeping_lent_inputs_does_not_warn(route):
    for body in (lambda x: x, lambda x: x * 2, lambda x: x[::1], lambda x: np.asarray(x)):
        x = jnp.arange(3.0)
        got = route(lambda x, body=body: py_func(body, [x], F, copy=False), x)
        np.testing.assert_array_equal(got, body(np.asarray(x)))


def test_returning_a_lent_input_gives_its_values(route):
    f = (jax.jit if route.jit else lambda f: f)(lambda x: py_func(lambda x: x, [x], F, copy=False))
    results = [jax.block_until_ready(f(jnp.full(BIG, i, F))) for i in range(10)]
    assert [float(y[0]) for y in results] == list(range(10))


def test_result_of_a_lent_input_is_independent_of_the_callers_array():
    x = np.arange(300_000, dtype=np.float32)
    y = py_func(lambda x: x, [x], F, copy=False)
    x[:] = -1
    assert float(y[5]) == 5


def test_lent_inputs_under_vmap(transport):
    def body(x, y):
        assert not x.flags.writeable
        assert not y.flags.writeable
        return x + y

    f = jax.vmap(lambda x, y: py_func(body, [x, y], F, copy=False), in_axes=(0, None))
    for g in (f, jax.jit(f)):
        np.testing.assert_array_equal(g(jnp.arange(4.0), 1.0), [1, 2, 3, 4])


@pytest.mark.parametrize(("n", "views"), [(3, 0), (BIG, 1)], ids=["small", "large"])
def test_a_small_lent_input_is_a_copy_which_is_faster(n, views, route, monkeypatch):
    made = []
    as_strided = memory.as_strided
    monkeypatch.setattr(memory, "as_strided", lambda *args, **kwargs: made.append(1) or as_strided(*args, **kwargs))
    route(lambda x: numpy_function(lambda x: x + x.flags.writeable, [x], F, copy=False), jnp.ones(n))
    assert len(made) == views
