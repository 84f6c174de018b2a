"""`map_batches`: blocks of one compiled `vmap`, from arrays and iterables, in memory and in folders."""

import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from jaxpyop import map_batches
from tests.shared.tables import named, rows
from tests.sweeps.programs import BASE, W, X, apart, half_done, on_host, same

fcntl = pytest.importorskip("fcntl", reason="checkpoint= needs POSIX locks")


def sine(x):
    return np.sin(x)


# ----------------------------------------------------------------------- values


VALUES = {
    "a function on the host": (on_host(sine), X),
    "a tree": (lambda x: {"a": x["p"] + x["q"][0], "b": (x["q"][1], None)}, {"p": X, "q": (X, np.ones((7, 2, 3)))}),
    "many dtypes": (lambda x: (x > 2, x * 1j, *map(x.astype, (jnp.int8, jnp.bfloat16, jnp.float8_e5m2))), X),
    "no results": (lambda x: None, X),
    "an empty result": (lambda x: jnp.zeros((0, 3)), X),
    "keys": (lambda x: jax.random.normal(x["key"]) + x["x"], {"key": jax.random.split(jax.random.key(3), 7), "x": X}),
    "strides and byte order": (lambda x: x + 1, np.arange(28, dtype=">f4").reshape(4, 7).T),
    "no elements": (lambda x: (x + 1, x > 1), np.zeros((0, 3), np.float32)),
}


@pytest.mark.parametrize(("f", "inputs"), named(VALUES, slow=VALUES.keys() - {"a tree", "no results", "no elements"}))
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_results_are_those_of_vmap(f, inputs, where, tmp_path):
    checkpoint = tmp_path / "sweep" if where == "folder" else None
    expected = jax.vmap(f)(
        jax.tree.map(
            lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x.astype(x.dtype.newbyteorder("="))), inputs
        )
    )
    for _ in range(2):
        same(map_batches(f, inputs, batch_size=3, checkpoint=checkpoint, version="1"), expected)


@pytest.mark.parametrize("batch_size", rows([1, 3, 7, 8], fast=[]))
def test_elements_of_an_iterable(batch_size, tmp_path):
    elements = lambda: ({"x": float(x), "key": jax.random.key(x)} for x in range(7))
    f = lambda x: x["x"] + jax.random.uniform(x["key"])
    expected = jax.vmap(f)({"x": X, "key": jnp.stack([jax.random.key(k) for k in range(7)])})
    for checkpoint in (None, tmp_path / "a", tmp_path / "a"):
        same(map_batches(f, elements(), batch_size=batch_size, checkpoint=checkpoint), expected)


def test_an_iterable_that_fills_one_array_again_and_again():
    def rows():
        row = np.zeros(2)
        for k in range(5):
            row[:] = k
            yield row

    np.testing.assert_array_equal(map_batches(lambda x: x.sum(), rows(), batch_size=3), 2 * np.arange(5))


def test_in_memory_arrays_are_the_callers_own():
    result = map_batches(lambda x: x + 0, X, batch_size=100)
    result += 1
    assert X[0] == 0


def test_64_bits(x64, tmp_path):
    inputs = np.array([2**40, 1])
    same(map_batches(lambda x: x * 0.5, inputs, batch_size=1, checkpoint=tmp_path / "a"), inputs * 0.5)


# ----------------------------------------------------------------------- going on, and errors


@pytest.mark.parametrize("inputs", [lambda: X, lambda: iter(X)], ids=["arrays", "iterable"])
def test_a_failure_names_its_block_and_keeps_the_others(inputs, tmp_path):
    runs, fails = [], [4]

    def body(x):
        runs.append(int(x))
        if x in fails:
            raise KeyError("four")
        return x

    call = lambda: map_batches(on_host(body), inputs(), batch_size=2, checkpoint=tmp_path / "a", version="1")
    with pytest.raises(KeyError, match="four") as caught:
        call()
    assert "in block 2, elements 4 to 5 of inputs" in caught.value.__notes__[-1]
    fails.clear()
    np.testing.assert_array_equal(call(), X)
    assert runs == [0, 1, 2, 3, 4, 4, 5, 6]


def test_progress(capsys):
    told = []
    map_batches(lambda x: x, X, batch_size=3, progress=lambda *numbers: told.append(numbers))
    map_batches(lambda x: x, iter(X), batch_size=4, progress=lambda *numbers: told.append(numbers))
    assert told == [(3, 7), (6, 7), (7, 7), (4, None), (7, None)]
    map_batches(lambda x: x, X, batch_size=3, progress=True)
    assert "7 of 7 elements" in capsys.readouterr().err


def of(inputs, f=abs, **options):
    return lambda: map_batches(f, inputs, **{"batch_size": 1} | options)


WRONG = {
    "no function": (TypeError, "expected a function of one element", of(X, f=3)),
    "a list": (TypeError, "inputs is a list", of([1.0, 2.0])),
    "a mapping": (TypeError, "inputs is of type mapping", of(types.MappingProxyType({1: 2}))),
    "a text": (TypeError, "inputs is of type str", of("text")),
    "numbers in a tuple": (TypeError, "inputs is of type tuple", of((1.0, 2.0))),
    "a scalar array": (ValueError, "inputs is a scalar", of(np.float32(1))),
    "no arrays": (ValueError, "inputs has no arrays", of({})),
    "no elements": (ValueError, "inputs has no elements", of(iter(()))),
    "objects": (TypeError, "dtype object", of(np.array([None]))),
    "lengths": (ValueError, "leading axes of inputs differ", of((X, X[1:]))),
    "times": (TypeError, "timedelta64", of(np.zeros(2, "m8[s]"))),
    "a mask": (TypeError, "masked array", of(np.ma.array([1.0], mask=[True]))),
    "a large integer": (OverflowError, "do not fit int32", of(np.array([2**40]))),
    "types": (TypeError, "element 1 of inputs is not", of(iter([1, 2.5]))),
    "a larger integer": (TypeError, "from element 0 on has", of(iter([1, 2**63]), batch_size=2)),
    "shapes": (TypeError, "element 1 of inputs is not", of(iter([X, X[1:]]))),
    "batch_size 0": (ValueError, "batch_size is 0", of(X, batch_size=0)),
    "version 1": (TypeError, "version is 1; expected a string", of(X, version=1)),
    "batch_size 2.5": (ValueError, "batch_size is 2.5", of(X, batch_size=2.5)),
    "a key": (TypeError, "f returns a PRNG key", of(X, f=lambda x: jax.random.key(0))),
    "jit": (RuntimeError, "a transformation", jax.jit(of(X))),
}


@pytest.mark.parametrize(("kind", "text", "call"), WRONG.values(), ids=WRONG)
def test_what_is_refused(kind, text, call):
    with pytest.raises(kind, match=f"jaxpyop.map_batches: .*{text}"):
        call()


# ----------------------------------------------------------------------- folders of other calls


OTHER = {
    "another constant": (lambda x: W[3] * x + jnp.asarray(W)[x.astype(int) % 5], X, {}),
    "another array in a closure": (lambda x: W[2] * x + jnp.asarray(W + 1)[x.astype(int) % 5], X, {}),
    "another batch_size": (BASE, X, {"batch_size": 3}),
    "other inputs": (BASE, X + (np.arange(7) == 0), {}),
    "another dtype": (BASE, X.astype(np.int32), {}),
    "another shape": (BASE, X[:, None], {}),
    "another structure": (lambda x: BASE(x[0]), (X,), {}),
    "more elements": (BASE, np.arange(8, dtype=np.float32), {}),
    "an iterable": (BASE, iter(X), {}),
    "another version": (BASE, X, {"version": "2"}),
    "another result": (lambda x: (BASE(x),), X, {}),
}


@pytest.mark.parametrize(("f", "inputs", "options"), named(OTHER, slow=OTHER.keys() - {"other inputs"}))
def test_a_folder_of_another_call_is_refused(f, inputs, options, tmp_path):
    half_done(tmp_path / "a", BASE, X)
    with pytest.raises(ValueError, match=r"is that of another call.*pass a new folder"):
        map_batches(f, inputs, **{"batch_size": 2, "checkpoint": tmp_path / "a"} | options)
    np.testing.assert_array_equal(map_batches(BASE, X, batch_size=2, checkpoint=tmp_path / "a"), jax.vmap(BASE)(X))


@pytest.mark.parametrize(("first", "second"), rows([(7, 4), (7, 9), (8, 4), (4, 8)], fast=[(8, 4)]))
def test_an_iterable_with_more_or_fewer_elements(first, second, tmp_path):
    call = lambda count: map_batches(BASE, iter(np.arange(float(count))), batch_size=2, checkpoint=tmp_path / "a")
    call(first)
    with pytest.raises(ValueError, match=r"it has|is of other inputs"):
        call(second)


def test_an_array_of_64_bits_is_refused_where_these_are_off():
    with jax.enable_x64(True):
        wide = jnp.arange(3.0)
    for inputs in (wide, iter(wide)):
        with pytest.raises(TypeError, match=r"is a jax\.Array of float64; enable 64-bit"):
            map_batches(lambda x: x, inputs, batch_size=2)


def test_results_that_are_typed_keys(tmp_path):
    key = jax.random.key(0)
    made = lambda x: jaxpyop.py_function(lambda x: jax.random.key(int(x)), [x], key.dtype)
    f = lambda x: jax.random.uniform(made(x))
    for _ in range(2):
        same(map_batches(f, X, batch_size=2, checkpoint=tmp_path / "a", version="1"), np.asarray(jax.vmap(f)(X)))


def test_settings_of_jax_are_part_of_a_folder(tmp_path):
    """A function that makes its own numbers depends on them, and the program does not show it."""
    call = lambda: map_batches(on_host(sine), X, batch_size=2, checkpoint=tmp_path / "a", version="1")
    half_done(tmp_path / "a", on_host(sine), X, version="1")
    with jax.enable_x64(True), pytest.raises(ValueError, match="settings of jax: "):
        map_batches(on_host(sine), X, batch_size=2, checkpoint=tmp_path / "a", version="1")
    same(call(), np.sin(X))


def test_a_sweep_does_not_take_the_blocks_of_a_folder_that_was_made_anew(tmp_path):
    """Its last block is another call's, if the folder was deleted while it ran."""
    folder = tmp_path / "a"

    def made_anew(done, total):
        if done == 4:
            shutil.rmtree(folder)
            apart(lambda: map_batches(lambda x: 200 * x, X, batch_size=2, checkpoint=folder))

    with pytest.raises(ValueError, match="of another call"):
        map_batches(lambda x: x, X, batch_size=2, checkpoint=folder, progress=made_anew)


def test_the_last_block_has_a_program_of_its_own(tmp_path):
    def rule(scale):
        @jax.custom_batching.custom_vmap
        def f(x):
            return x

        f.def_vmap(lambda size, _, x: (x * (scale if size == 1 else 1), True))
        return f

    map_batches(rule(2), X, batch_size=2, checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="block 3 is of other inputs or of another function"):
        map_batches(rule(3), X, batch_size=2, checkpoint=tmp_path / "a")
    dtypes = iter([jnp.float32, jnp.int32])
    with pytest.raises(TypeError, match=r"f returned .* for the last block"):
        map_batches(lambda x: x.astype(next(dtypes)), X, batch_size=4)


class Lazy:
    shape, dtype = (7,), np.dtype(np.float32)

    def __getitem__(self, part):
        if part.start:
            raise StopIteration
        return X[part]


def test_an_array_that_raises_does_not_end_the_sweep():
    with pytest.raises(RuntimeError, match="StopIteration"):
        map_batches(lambda x: x, Lazy(), batch_size=2)


def test_a_sweep_inside_itself(tmp_path):
    inner = lambda x: map_batches(lambda x: x, X, batch_size=2, checkpoint=tmp_path)[0]
    with pytest.raises(RuntimeError, match="with the same folder"):
        map_batches(on_host(inner), X, batch_size=2, checkpoint=tmp_path, version="1")
