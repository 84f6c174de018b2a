"""Residuals of vjp=(fwd, bwd): any object, on the host, each with its element."""

import collections
import concurrent.futures
import dataclasses
import itertools
import math
import multiprocessing
import operator
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_func
from tests.gradients.bodies import TRANSFORMS, F
from tests.gradients.rules.cases import X
from tests.shared.checks import Counter
from tests.shared.tables import rows

every_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


class Session:
    """An object that NumPy, JAX and pickle know nothing of."""

    def __init__(self, slope):
        self.slope = slope
        self.lock = threading.Lock()


def square(x):
    return x * x


def in_session(x):
    return x * x, Session(2 * x)


def of_session(session, cotangents):
    return session.slope * cotangents


def in_array(x):
    return x * x, [2 * x]


def of_array(residuals, cotangents):
    return residuals[0] * cotangents


@every_transform
def test_any_object_is_kept(transform):
    op = lambda x: numpy_function(square, [x], F, vjp=(in_session, of_session))
    np.testing.assert_allclose(transform(jax.grad(lambda x: (op(x) + 3 * op(x + 1)).sum()))(X), 8 * X + 6)


Kept = collections.namedtuple("Kept", "slope")
Frozen = dataclasses.make_dataclass("Frozen", ["slope"], frozen=True)
InSlots = dataclasses.make_dataclass("InSlots", ["slope", ("late", int, dataclasses.field(init=False))], slots=True)


class OfTwo(tuple):
    """A tuple with its own constructor, and an attribute besides."""

    def __new__(cls, one, two):
        made = super().__new__(cls, (one, two))
        made.name = "two"
        return made


class Rows(list):
    """A list by another name."""


def in_object_array(x):
    made = np.empty(1, object)
    made[0] = x
    return made


def of_two(held):
    assert (type(held), held.name) == (OfTwo, "two")
    return held[0]


first, slope, named_slope = operator.itemgetter(0), operator.attrgetter("slope"), operator.itemgetter("slope")
HOLDERS = {
    "array": (lambda x: x, lambda held: held),
    "containers": (lambda x: {"kept": ([x],)}, lambda held: held["kept"][0][0]),
    "named tuple": (Kept, slope),
    "frozen dataclass": (Frozen, slope),
    "dataclass with slots and a field that is not set": (InSlots, slope),
    "subclass of tuple": (lambda x: OfTwo(x, time.gmtime(0)), of_two),
    "subclass of dict": (lambda x: collections.OrderedDict(slope=x), named_slope),
    "dict with a factory": (lambda x: collections.defaultdict(list, slope=x), named_slope),
    "deque": (lambda x: collections.deque([x]), first),
    "subclass of list": (lambda x: Rows([x]), first),
    "subclass of array": (lambda x: x.view(np.recarray), np.asarray),
    "array of objects": (in_object_array, first),
}
every_holder = pytest.mark.parametrize(("hold", "take"), HOLDERS.values(), ids=HOLDERS)


@every_holder
@every_transform
def test_fwd_may_write_into_its_residuals_later(transform, hold, take):
    buffer = np.zeros(3, np.float32)

    def fwd(x):
        buffer[...] = x
        return x * x, hold(buffer)

    op = lambda x: numpy_function(square, [x], F, vjp=(fwd, lambda held, ct: 2 * ct * take(held)))
    np.testing.assert_allclose(transform(jax.grad(lambda x: (op(x) + op(2 * x)).sum()))(X), 10 * X)


@every_holder
def test_bwd_may_not_write_into_residuals(hold, take):
    def bwd(residuals, cotangents):
        slope = take(residuals)
        slope *= cotangents
        return slope

    op = lambda x: numpy_function(square, [x], F, vjp=(lambda x: (x * x, hold(2 * x)), bwd))
    with pytest.raises(ValueError, match="read-only"), jaxpyop.reraise():
        jax.grad(lambda x: op(x).sum())(X)


def popped(held):
    return math.prod(held.pop() for _ in range(len(held)))


USED_UP = {
    "list": (list, popped),
    "deque": (collections.deque, popped),
    "set": (set, popped),
    "list in a tuple": (lambda values: (list(values),), lambda held: popped(held[0])),
    "list in a dict": (lambda values: {"a": list(values)}, lambda held: popped(held.pop("a"))),
    "list in a dataclass": (
        lambda values: dataclasses.make_dataclass("Held", ["x"])(list(values)),
        lambda held: popped(held.x),
    ),
}


@pytest.mark.parametrize(("hold", "take"), USED_UP.values(), ids=USED_UP)
def test_bwd_may_use_up_the_containers_of_its_residuals(hold, take):
    """Its next run has them as `fwd` returned them."""
    op = lambda x: numpy_function(
        lambda x: 6 * x, [x], F, vjp=(lambda x: (6 * x, hold([2.0, 3.0])), lambda held, ct: ct * np.float32(take(held)))
    )
    for route in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(route(jax.jacrev(op))(X), 6 * np.eye(3, dtype=np.float32))


@pytest.mark.parametrize("iterator", [reversed, enumerate, itertools.cycle])
def test_an_iterator_is_refused(iterator):
    op = lambda x: numpy_function(square, [x], F, vjp=(lambda x: (x * x, iterator([1, 2])), lambda r, ct: ct))
    with pytest.raises(TypeError, match="which the first run of bwd uses up; give a list"), jaxpyop.reraise():
        jax.grad(lambda x: op(x).sum())(X)


@every_transform
def test_a_stateful_op_runs_fwd_once_in_place_of_the_function(transform):
    func, fwd = Counter(square), Counter(in_array)
    op = lambda x: py_func(func, [x], F, vjp=(fwd, of_array))
    np.testing.assert_allclose(transform(jax.jacrev(op))(X), np.diag(2 * X))
    assert (func.count, fwd.count) == (0, 1)


# ------------------------------------------------------------------ batches

# What a program does with pullbacks.
CHANGES = {
    "the same": lambda a: a,
    "swapped": lambda a: jnp.swapaxes(a, 0, 1),
    "reversed": lambda a: a[:, ::-1],
    "a part": lambda a: a[:, 1:],
    "some twice": lambda a: a[jnp.array([0, 0, 1])],
}
ROWS = list(itertools.product(CHANGES, ["sequential", "parallel", "expand_dims", "broadcast_all"], [False, True]))


@pytest.mark.parametrize(("name", "method", "stateful"), rows(ROWS, [(name, "expand_dims", True) for name in CHANGES]))
def test_residuals_belong_to_their_elements(name, method, stateful):
    """Pullbacks are data, which a program may transpose, reverse or slice. A pair runs once per element."""
    change = CHANGES[name]
    fwd, bwd = Counter(lambda x: (x * x, np.array(2 * x))), Counter(lambda r, ct: [r * ct])

    def op(x):
        return numpy_function(square, [x], F, vjp=(fwd, bwd), vmap_method=method, stateful=stateful)

    def pulled(x):
        pulls = jax.vmap(jax.vmap(lambda x: jax.vjp(op, x)[1]))(x)
        return jax.vmap(jax.vmap(lambda pull: pull(F(1))[0]))(jax.tree.map(change, pulls))

    x = jnp.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(pulled(x), change(2 * x))
    assert (fwd.count, bwd.count) == (9, change(x).size)


def test_receipts_of_several_runs():
    op = lambda x: numpy_function(square, [x], F, vjp=(in_array, of_array), vmap_method="expand_dims")
    first, second = (jax.vmap(lambda x: jax.vjp(op, x)[1])(x) for x in (X, 5 * X))
    mixed = jax.tree.map(lambda a, b: jnp.stack([a[0], b[1], a[2]]), *map(jax.tree.leaves, (first, second)))
    pulls = jax.tree.unflatten(jax.tree.structure(first), mixed)
    np.testing.assert_allclose(jax.vmap(lambda pull: pull(F(1))[0])(pulls), 2 * X * jnp.array([1, 5, 1]))


@pytest.mark.parametrize(
    ("cleared", "method"), [(False, "expand_dims"), (True, "expand_dims"), (False, "broadcast_all")]
)
def test_further_axes_of_the_backward_pass(cleared, method):
    """The axis of `jax.jacrev` may be between those of `fwd`, which runs again if its record is gone."""
    op = lambda x: numpy_function(square, [x], F, vjp=(in_array, of_array), vmap_method=method)
    x, cts = jnp.arange(6.0).reshape(2, 3), jnp.arange(1.0, 5.0)
    pulls = jax.vmap(jax.vmap(lambda x: jax.vjp(op, x)[1]))(x)
    if cleared:
        jaxpyop.clear_records()
    each = jax.vmap(lambda pull, ct: pull(ct)[0], (None, 0))
    found = jax.vmap(jax.vmap(jax.vmap(lambda pull, ct: pull(ct)[0], (0, None)), (None, 0)), (0, None))(pulls, cts)
    np.testing.assert_allclose(found, 2 * x[:, None] * cts[:, None])
    np.testing.assert_allclose(jax.vmap(jax.vmap(each, (0, None)), (0, None))(pulls, cts), 2 * x[..., None] * cts)


@pytest.mark.parametrize("cleared", [False, True])
def test_elements_that_did_not_run(cleared):
    """A `cond` under `vmap` gives `bwd` zeros for the elements that took the other branch."""

    def checked(x):
        assert (x != 0).all()
        return in_array(x)

    op = lambda x: numpy_function(square, [x], F, vjp=(checked, of_array), vmap_method="expand_dims")
    x = jnp.arange(1.0, 5.0)
    pulls = jax.vmap(lambda x: jax.vjp(lambda x: jax.lax.cond(x > 2, op, lambda x: 7 * x, x), x)[1])(x)
    if cleared:
        jaxpyop.clear_records()
    np.testing.assert_allclose(jax.vmap(lambda pull: pull(F(1))[0])(pulls), [7, 7, 6, 8])


@pytest.mark.parametrize("cleared", [False, True])
def test_fwd_that_runs_again_must_give_the_same(cleared):
    numbers = itertools.count()
    op = lambda x: numpy_function(square, [x], F, vjp=(lambda x: (x * x + next(numbers), 2 * x), lambda r, ct: r * ct))
    pull = jax.vjp(op, X)[1]
    if cleared:
        jaxpyop.clear_records()
        with pytest.raises(RuntimeError, match=r"fwd of vjp ran again for a backward pass.*gave other results"):
            pull(X)
    else:
        np.testing.assert_allclose(pull(X)[0], 2 * X * X)


@pytest.mark.parametrize("method", ["sequential", "expand_dims"])
def test_pairs_in_two_branches(method):
    """JAX hands the receipts of both branches over in one array, and their residuals are no arrays of one kind."""

    def op(factor, key, x):
        fwd, bwd = lambda x: (factor * x * x, {key: 2 * factor * x}), lambda r, ct: r[key] * ct
        return numpy_function(lambda x: factor * x * x, [x], F, vjp=(fwd, bwd), vmap_method=method)

    x = jnp.arange(1.0, 5.0)
    program = lambda x: jax.lax.cond(x > 2, lambda x: op(1, "one", x), lambda x: op(5, "five", x), x)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(program)))(x), [10, 20, 6, 8])


# -------------------------------------------------------- processes, threads


def test_executors():
    """Residuals stay in this process, and so does the pair."""
    op = lambda pool: lambda x: numpy_function(square, [x], F, vjp=(in_session, of_session), executor=pool, name="mine")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        np.testing.assert_allclose(jax.vmap(jax.grad(op(pool)))(X), 2 * X)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for given in (pool, [pool], lambda: pool):
            with pytest.raises(ValueError, match=r"'mine': fwd of vjp keeps its residuals in this process.*or use thr"):
                jax.jit(jax.grad(op(given))).lower(1.0)
