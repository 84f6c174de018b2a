"""The store of records, inside: what goes first, and tokens.

gradients/test_records.py has what a user sees of it.
"""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxpyop
from jaxpyop._op.primitive.records import MAX_READ, NO_RECORD, READ_SHARE, RECORDS, Records
from tests.shared.checks import eventually
from tests.shared.examples import few, many

LAST = 2**32 - 2


class Taken:
    def __init__(self, nbytes=8):
        self.nbytes = nbytes


class Model:
    """What `Records` promises, in lists of (token, record, once made), each in the order in which they go."""

    def __init__(self, max_bytes):
        self.max_bytes, self.evicted = max_bytes, 0
        self.shelves = self.read, self.read_once_made, self.unread = [], [], []

    def all(self):
        return [entry for shelf in self.shelves for entry in shelf]

    def put(self, entry):
        self.unread.append(entry)
        while len(self.read) > MAX_READ or nbytes(self.read) > self.max_bytes // READ_SHARE:
            self.read.pop(0)
        while len(self.all()) > 1 and nbytes(self.all()) > self.max_bytes:
            shelf = next(filter(None, self.shelves))
            self.evicted += shelf is self.unread
            shelf.pop(0)

    def get(self, token):
        for shelf in self.shelves:
            for entry in [entry for entry in shelf if entry[0] == token]:
                shelf.remove(entry)
                (self.read_once_made if entry[2] else self.read).append(entry)
                return entry[1]
        return None


def nbytes(entries):
    return sum(taken.nbytes for _, taken, _ in entries)


puts = st.tuples(st.just("put"), st.integers(0, 80), st.booleans())
gets = st.tuples(st.just("get"), st.integers(0, 9))
sizes, firsts = map(st.sampled_from, ([0, 60, 64 * 40, 64 * 200], [1, LAST - 3, LAST]))
inputs = given(max_bytes=sizes, steps=st.lists(st.one_of(puts, gets), max_size=40), first=firsts)


def equals_the_model(max_bytes, steps, first):
    records, model, tokens = Records(max_bytes, first=first), Model(max_bytes), []
    for what, number, *once_made in steps:
        if what == "put":
            taken = Taken(number)
            token = records.put(taken, once_made=once_made[0])
            assert 1 <= token <= LAST < NO_RECORD
            assert token not in [e[0] for e in model.all()]
            model.put((token, taken, once_made[0]))
            tokens.append(token)
        elif tokens:
            token = tokens[-1 - number % len(tokens)]
            assert records.get(token) is model.get(token)
    found, stats = model.all(), records.stats()
    assert (stats["count"], stats["nbytes"], stats["evicted"]) == (len(found), nbytes(found), model.evicted)
    assert all(records.get(token) is taken for token, taken, _ in found)


test_equals_the_model = few(inputs, equals_the_model, examples=40)
test_equals_the_model_many_times = many(inputs, equals_the_model, examples=200)


def test_few_records_that_were_read_are_kept():
    """The size of an object that only C knows cannot be measured, so that their number has a bound as well."""
    records = Records(10**9)
    tokens = [records.put(Taken(0)) for _ in range(3 * MAX_READ)]
    for token in tokens:
        records.get(token)
    records.make_room()
    assert [records.get(token) is not None for token in tokens] == [False] * 2 * MAX_READ + [True] * MAX_READ


class Holder:
    """The array of a token."""


@pytest.mark.parametrize(("read", "once_made"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_record_goes_with_the_array_of_its_token(read, once_made):
    """Without having been read, it counts as read from then on, because the array may have been copied."""
    records, holder = Records(100), Holder()
    token, other = records.put(Taken(), once_made=once_made), records.put(Taken())
    records.hold([token], holder)
    assert not read or records.get(token) is not None
    del holder
    records.make_room()
    assert (records.get(token) is None) is (read or not once_made)
    assert records.get(other) is not None
    assert records.stats()["evicted"] == 0


def test_a_token_that_is_collected_under_the_lock():
    """The collector may run in the very thread that has the lock."""
    records, holder = Records(100), Holder()
    records.hold([records.put(Taken())], holder)
    with records._lock:
        del holder
    assert records.stats()["count"] == 1
    records.make_room()
    assert records.stats()["count"] == 0


def test_a_record_that_reads_the_store_while_it_is_freed():
    records, seen = Records(8), []

    class Nosy(Taken):
        def __del__(self):
            seen.append(records.stats()["count"])

    records.put(Nosy())
    records.put(Taken())
    assert eventually(lambda: seen == [1])


def test_a_store_knows_its_own_tokens():
    """Another process has a store of its own, whose tokens are not taken for ours; nor those before `clear`."""
    records = Records(100, first=2**31)
    token = records.put(Taken())
    assert [records.was_issued(t) for t in (token - 1, token, token + 1, 0)] == [False, True, False, False]
    records.clear()
    assert not records.was_issued(token)
    assert records.put(Taken()) != token


def test_no_token_is_that_of_a_record_that_is_kept():
    """Also once all numbers were given, which takes a training run of a day."""
    records = Records(1000, first=LAST)
    tokens = [records.put(Taken()) for _ in range(3)]
    assert tokens == [LAST, 1, 2]
    records._next = LAST
    assert records.put(Taken()) == 3


def test_a_large_record_that_was_read_is_gone_before_the_next_run():
    """Or a step would take the memory of two."""
    held = []

    def body(x):
        held.append(RECORDS.stats()["nbytes"])
        return (x * x).sum()

    step = jax.jit(jax.grad(lambda x: jaxpyop.py_function(body, [x], jnp.float32(0))))
    jaxpyop.clear_records()
    for _ in range(3):
        jax.block_until_ready(step(jnp.ones(4 * 2**20)))
    # It also ran once for the shape of its result.
    assert held == [0] * 4
