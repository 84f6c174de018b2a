"""Records of forward passes: how long they are kept, what happens when one is gone, and their bounds."""

import contextlib
import functools
import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import numpy_function, py_function
from tests.gradients.bodies import TRANSFORMS, F
from tests.shared.checks import Counter, close, eventually, freed
from tests.shared.tables import named, rows

STEPS = 6
numbers = itertools.count()
PROGRAMS = {
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=STEPS)[0],
    "vmap": lambda f: lambda x: jnp.sum(jax.vmap(f)(x + jnp.arange(STEPS, dtype=F))),
    "one by one": lambda f: lambda x: sum(f(x + k) for k in range(STEPS)),
}


@pytest.fixture(autouse=True)
def _one_record():
    """A store of a single record, so that most are evicted before the backward pass comes."""
    jaxpyop.clear_records()
    with jaxpyop.config.override(max_record_bytes=1):
        yield
    jaxpyop.clear_records()


def steady(x):
    return x * x * 0.5


def draws():
    generator = np.random.default_rng(0)
    return lambda x: x * generator.normal()


def automatic(body, **options):
    """An op whose name is new, because the warning comes once for each name."""
    name = f"op {next(numbers)}"
    return lambda x: py_function(body, [x], F, output_shapes=(), name=name, **options)


def with_residuals(body, **options):
    """The residual is the slope of the line through the origin, so that the derivative is known."""

    def fwd(x):
        y = np.float32(body(float(x)))
        return y, y / x

    rule, name = (fwd, lambda slope, ct: slope * ct), f"op {next(numbers)}"
    return lambda x: numpy_function(lambda x: fwd(x)[0], [x], F(0), vjp=rule, name=name, **options)


OPS = {"automatic": automatic, "residuals": with_residuals}
AGAIN = "records of forward passes were pushed out before the backward pass came"
BOTH = [("scan", op) for op in OPS]
each_program = pytest.mark.parametrize(("program", "op"), rows([(p, op) for p in PROGRAMS for op in OPS], BOTH))


@contextlib.contextmanager
def told_once():
    with pytest.warns(RuntimeWarning, match=AGAIN) as told:
        yield
    assert len(told) == 1
    assert "max_record_bytes" in str(told[0].message)


@each_program
def test_a_function_runs_again_with_one_warning(program, op):
    program = PROGRAMS[program]
    line = lambda x: x * jax.lax.stop_gradient(steady(x) / x)
    with told_once(), jaxpyop.report() as report:
        found = jax.block_until_ready(jax.jit(jax.grad(program(OPS[op](steady))))(0.7))
    np.testing.assert_allclose(found, jax.grad(program(steady if op == "automatic" else line))(0.7), rtol=1e-5)
    (row,) = report.rows()
    assert row["records"] == STEPS
    assert STEPS - 2 <= row["recomputed"] <= STEPS
    assert STEPS - 2 <= row["pushed_out"] <= STEPS
    assert f"{row['pushed_out']} records were pushed out: increase max_record_bytes" in str(report)


def bell(x):
    return jnp.sin(x) * x**3 / (1 + jnp.exp(-x))


@pytest.mark.filterwarnings("ignore:.*pushed out:RuntimeWarning")
@pytest.mark.parametrize(
    "second", named({"hessian": jax.hessian, "twice": lambda f: jax.grad(jax.grad(f))}, slow=["hessian"])
)
def test_a_second_derivative_that_runs_again_gives_the_same_bits(second):
    """However often it ran before: after some runs its operations are compiled together."""
    xs = jnp.linspace(0.3, 2.0, 12)
    close(jax.jit(jax.vmap(second(automatic(bell))))(xs), jax.vmap(second(bell))(xs))


@each_program
def test_a_function_that_gives_something_else_is_refused(program, op):
    step = jax.jit(jax.grad(PROGRAMS[program](OPS[op](draws()))))
    with told_once(), pytest.raises(Exception, match=r"(func|fwd of vjp) ran again .*other results.*stateful=True"):
        jax.block_until_ready(step(0.7))


@pytest.mark.parametrize("op", OPS)
def test_a_stateful_function_never_runs_again(op):
    body = Counter(steady)
    step = jax.jit(jax.grad(PROGRAMS["scan"](OPS[op](body, stateful=True))))
    with pytest.raises(Exception, match=r"stateful op cannot be run again.*max_record_bytes"):
        jax.block_until_ready(step(0.7))
    assert body.count == STEPS


def test_records_that_the_user_cleared_are_made_again_silently():
    for body, slope in ((automatic(steady), 0.7), (with_residuals(steady), 0.35)):
        _, pull = jax.vjp(jax.jit(body), F(0.7))
        jaxpyop.clear_records()
        close(pull(F(1))[0], slope)


LOGS = {"list": (list, lambda log: log.append(1)), "dict": (dict, lambda log: log.update({len(log): 1}))}


@pytest.mark.parametrize(("make", "note"), LOGS.values(), ids=LOGS)
def test_a_static_value_may_change_between_the_passes(make, note):
    """A receipt that is taken for that of another call has a gradient of zero."""
    log = jaxpyop.static(make())
    body = lambda x, log: (note(log), jnp.sin(x) if x > 0 else x)[1]
    pair = (lambda x, log: (note(log), (np.sin(x), x))[1], lambda kept, cotangent: np.cos(kept) * cotangent)
    for op in (
        lambda x: py_function(body, [x, log], F, output_shapes=()),
        lambda x: numpy_function(lambda x, log: np.sin(x), [x, log], F, output_shapes=(), vjp=pair),
    ):
        for gradient in (jax.grad(op), jax.jit(jax.grad(op)), lambda x, op=op: jax.vmap(jax.grad(op))(x[None])[0]):
            close(gradient(jnp.float32(0.7)), np.cos(0.7))


def test_another_order_of_the_results_is_seen():
    """As of an image that is shifted at random, and has a margin that is longer than what a checksum reads of it."""
    x = np.zeros((256, 256), np.float32)
    x[100:150] = np.random.default_rng(0).normal(size=(50, 256))
    shifts = itertools.count()
    op = lambda x: py_function(lambda x: jnp.roll(x, next(shifts), 0), [x], jax.ShapeDtypeStruct(x.shape, F))
    shifted, pull = jax.vjp(jax.jit(op), x)
    jax.block_until_ready(shifted)
    jaxpyop.clear_records()
    with pytest.raises(Exception, match=r"ran again .*other results"):
        jax.block_until_ready(pull(jnp.ones(x.shape)))


def test_a_difference_of_one_element_of_the_results_is_seen():
    """There is room for one record, so that the second step evicts that of the first."""
    a = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    runs, other = itertools.count(), np.where(np.arange(a.size) == a.size // 2, a + 1e-3, a)
    # It runs on types too, while the gradient is traced.
    body = lambda x: x * jnp.asarray(a if next(runs) < 2 else other)
    with jaxpyop.config.override(max_record_bytes=1):
        op = lambda x: py_function(body, [x], F, output_shapes=(1000,), name=f"op {next(numbers)}")
        pull = jax.vjp(jax.jit(op), F(1))[1]
        jax.vjp(jax.jit(automatic(steady)), F(1))
        with told_once(), pytest.raises(Exception, match=r"ran again .*other results"):
            jax.block_until_ready(pull(jnp.ones(1000)))


def test_the_residuals_of_a_block_are_made_again():
    fwd, x = lambda x: (x * x * 0.5, x * 0.5), jnp.arange(1.0, 5.0)
    options = {"vjp": (fwd, lambda slope, ct: 2 * slope * ct), "vmap_method": "expand_dims"}
    op = jax.vmap(lambda x: numpy_function(steady, [x], F, name=f"op {next(numbers)}", **options))

    def program(x):
        y, pull = jax.vjp(op, x)
        for k in range(3):  # these push the residuals out
            y = y + jax.vjp(op, x + k)[0]
        return pull(y)[0] * 0 + pull(jnp.ones_like(x))[0]

    with pytest.warns(RuntimeWarning, match=AGAIN):
        close(jax.jit(program)(x), x)


CHECKPOINTS = {
    "the function": jax.checkpoint,
    "everything saveable": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "in a scan": lambda f: PROGRAMS["scan"](jax.checkpoint(f)),
    "in a vmap": lambda f: lambda x: jnp.sum(jax.vmap(jax.checkpoint(f))(jnp.stack([x, x]))),
    "around a cond": lambda f: jax.checkpoint(lambda x: jax.lax.cond(x > 0, f, lambda x: x, x)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", rows(CHECKPOINTS, ["the function"]))
def test_in_a_checkpoint_the_gradient_is_that_of_the_run_that_gave_the_value(name, op, transform):
    f = CHECKPOINTS[name](OPS[op](draws()))
    with jaxpyop.config.override(max_record_bytes=10**9):
        value, slope = transform(jax.value_and_grad(f))(F(0.75))
    # Each function is linear in x.
    np.testing.assert_allclose(slope * 0.75, value, rtol=1e-5)


# ------------------------------------------------------------------ how long they are kept


class Held:
    """An object in the residuals, by which tests see that a record is gone."""

    def __init__(self, megabytes=0):
        self.array = np.zeros((megabytes, 2**20), np.uint8)

    def scaled(self, ct):
        return ct + self.array.size * 0


# What hides an object: closures, as those of `scipy.sparse.linalg.factorized` and of autograd, and JAX's pullbacks.
HIDING = {
    "closure": lambda held: lambda ct: held.scaled(ct),
    "default": lambda held: lambda ct, held=held: held.scaled(ct),
    "partial": lambda held: functools.partial(Held.scaled, held),
    "method": lambda held: held.scaled,
    "pytree": lambda held: jax.tree_util.Partial(Held.scaled, held),
}


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_what_a_callable_holds_is_counted(hide):
    alive = []

    def fwd(x):
        alive.append(weakref.ref(held := Held(8)))
        return x * x, (hide(held), {"x": x})

    op = jax.jit(lambda x: numpy_function(square, [x], F(0), vjp=(fwd, lambda r, ct: 2 * r[0](ct) * r[1]["x"])))
    with jaxpyop.config.override(max_record_bytes=40 * 2**20):
        pulls = [jax.vjp(op, F(x))[1] for x in range(8)]
        assert living(alive) == 4
        assert pulls[-1](F(1)) == (14,)


def square(x):
    return x * x


def kept_by(transform, program):
    """References to the residuals of a function, after a program that differentiates it."""
    alive = []

    def fwd(x):
        alive.append(weakref.ref(held := Held()))
        return x * x, (x, held)

    op = lambda x: numpy_function(lambda x: x * x, [x], F(0), vjp=(fwd, lambda r, ct: 2 * r[0] * ct))
    program(transform(op))
    return alive


def living(alive):
    gc.collect()
    return sum(ref() is not None for ref in alive)


def test_outside_jit_a_record_that_was_read_goes_with_its_pullback():
    with jaxpyop.config.override(max_record_bytes=10**9):
        alive = kept_by(lambda f: f, lambda f: [jax.grad(f)(2.0) for _ in range(3)])
        assert eventually(lambda: living(alive) == 0)
        kept = []
        alive = kept_by(lambda f: f, lambda f: kept.append(jax.vjp(f, 2.0)[1]))
        assert living(alive) == 1
        assert [float(kept[0](F(1))[0]) for _ in range(2)] == [4.0, 4.0]
        kept.clear()
        assert eventually(lambda: living(alive) == 0)


def test_an_input_that_a_function_keeps_holds_no_other_value_of_its_run():
    kept, refs = [], []

    def body(x):
        factor = jnp.arange(3.0) + 1
        kept.append(x)
        refs.append(weakref.ref(factor))
        return x * factor

    close(jax.grad(lambda x: py_function(body, [x], F).sum())(jnp.ones(3)), [1, 2, 3])
    assert freed(*refs)


def test_a_record_that_cannot_be_made_again_outlives_others_that_were_read():
    op, other = (with_residuals(steady, stateful=stateful) for stateful in (True, False))
    with jaxpyop.config.override(max_record_bytes=10**9):
        pull, step = jax.vjp(jax.jit(op), F(0.7))[1], jax.jit(jax.grad(other))
        for _ in range(2):
            close(pull(F(1))[0], 0.35)
            for k in range(1, 80):
                step(F(k))


def test_residuals_that_forward_mode_does_not_need_do_not_fill_the_memory():
    alive = []

    def fwd(x):
        alive.append(weakref.ref(held := Held(4)))
        return x * x, held

    rules = {"vjp": (fwd, lambda held, ct: None), "jvp": lambda i, o, t: 2 * i[0] * t[0]}
    along = jax.jit(lambda x: jax.jvp(lambda x: numpy_function(square, [x], F(0), **rules), (x,), (x,))[1])
    with jaxpyop.config.override(max_record_bytes=10**9):
        assert [along(F(x)) for x in range(6)] == [2 * x * x for x in range(6)]
        assert 1 <= living(alive) <= 3
