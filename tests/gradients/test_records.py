"""The record store against a model: a list of what is live, oldest first."""

import gc
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpyop._op.primitive.records import NO_RECORD, READ_SHARE, Records

LAST = 2**32 - 2


class Taken:
    def __init__(self, nbytes=8):
        self.nbytes = nbytes


def test_reading_does_not_consume():
    records, taken = Records(4, 1000), Taken()
    token = records.put(taken)
    assert [records.get(token) for _ in range(3)] == [taken] * 3


def test_unknown_token_and_zero():
    records = Records(4, 1000)
    records.put(Taken())
    assert records.get(0) is None
    assert records.get(12345) is None


def test_reading_does_not_save_from_eviction():
    records = Records(2, 1000)
    first, second = records.put(Taken()), records.put(Taken())
    records.get(first)
    records.put(Taken())
    assert records.get(first) is None
    assert records.get(second) is not None


def test_bounded_by_bytes():
    records = Records(100, 100)
    tokens = [records.put(Taken(40)) for _ in range(5)]
    assert [records.get(t) is not None for t in tokens] == [False] * 3 + [True] * 2
    assert records.stats() == {"count": 2, "nbytes": 80, "max_count": 100, "max_bytes": 100, "evicted": 3}


def test_oversized_record_is_kept_alone():
    records = Records(100, 100)
    small, large = records.put(Taken(10)), records.put(Taken(500))
    assert records.get(small) is None
    assert records.get(large).nbytes == 500
    after = records.put(Taken(10))
    assert records.get(large) is None
    assert records.get(after) is not None
    assert records.stats()["nbytes"] == 10


def test_tokens_wrap_without_reusing_live_ones():
    records = Records(3, 1000)
    kept = records.put(Taken())
    assert kept == 1
    records._next = LAST
    tokens = [records.put(Taken()), records.put(Taken())]
    assert tokens == [LAST, 2]  # 0 and NO_RECORD are never given out, 1 is alive
    assert NO_RECORD == LAST + 1
    assert records.get(kept) is not None


def test_tokens_skip_several_live_ones():
    records = Records(10, 1000)
    live = [records.put(Taken()) for _ in range(4)]
    records._next = 2
    assert records.put(Taken()) == 5
    assert all(records.get(t) is not None for t in live)


def test_resize_and_clear():
    records = Records(10, 1000)
    tokens = [records.put(Taken(10)) for _ in range(6)]
    records.resize(4, 1000)
    assert records.stats()["count"] == 4
    records.resize(4, 25)
    assert records.stats()["count"] == 2
    assert records.stats()["max_count"] == 4
    assert records.get(tokens[-1]) is not None
    records.clear()
    assert records.stats()["count"] == records.stats()["nbytes"] == 0
    assert records.get(tokens[-1]) is None
    assert records.put(Taken()) not in tokens


def test_evicted_records_are_freed():
    records, taken = Records(1, 1000), Taken()
    alive = weakref.ref(taken)
    records.put(taken)
    del taken
    assert alive() is not None
    records.put(Taken())
    gc.collect()
    assert alive() is None


def test_a_record_that_reads_the_store_while_it_is_freed():
    records = Records(1, 1000)
    seen = []

    class Nosy(Taken):
        def __del__(self):
            seen.append(records.stats()["count"])

    records.put(Nosy())
    records.put(Taken())
    gc.collect()
    assert seen == [1]


class Model:
    """What `Records` promises, in lists: entries [token, record, once made] in the order in which they go."""

    def __init__(self, max_count, max_bytes):
        self.max_count, self.max_bytes, self.evicted = max_count, max_bytes, 0
        self.read, self.read_once_made, self.unread = [], [], []

    def all(self):
        return self.read + self.read_once_made + self.unread

    def put(self, entry):
        self.unread.append(entry)
        self.shrink()

    def get(self, token):
        for shelf in (self.read, self.read_once_made, self.unread):
            for entry in shelf:
                if entry[0] == token:
                    shelf.remove(entry)
                    (self.read_once_made if entry[2] else self.read).append(entry)
                    return entry[1]
        return None

    def shrink(self):
        size = lambda entries: sum(e[1].nbytes for e in entries)
        while len(self.read) > self.max_count // READ_SHARE or size(self.read) > self.max_bytes // READ_SHARE:
            self.read.pop(0)
        while len(self.all()) > 1 and (len(self.all()) > self.max_count or size(self.all()) > self.max_bytes):
            shelf = self.read or self.read_once_made or self.unread
            self.evicted += shelf is self.unread
            shelf.pop(0)


@settings(max_examples=80, deadline=None, database=None)
@given(
    max_count=st.sampled_from([1, 3, 6, 64, 100]),
    max_bytes=st.sampled_from([0, 60, 64 * 40, 64 * 200]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 80), st.booleans()), st.tuples(st.just("get"), st.integers(0, 9))
        ),
        max_size=40,
    ),
    start=st.sampled_from([1, LAST - 3, LAST]),
)
def test_against_model(max_count, max_bytes, steps, start):
    records, model = Records(max_count, max_bytes), Model(max_count, max_bytes)
    records._next = start
    tokens = []
    for what, number, *once_made in steps:
        if what == "put":
            taken = Taken(number)
            token = records.put(taken, once_made=once_made[0])
            assert 1 <= token <= LAST
            assert token not in [e[0] for e in model.all()]
            model.put((token, taken, once_made[0]))
            tokens.append(token)
        elif tokens:
            token = tokens[-1 - number % len(tokens)]
            assert records.get(token) is model.get(token)
    stats = records.stats()
    assert stats["count"] == len(model.all())
    assert stats["nbytes"] == sum(e[1].nbytes for e in model.all())
    assert stats["evicted"] == model.evicted
    assert all(records.get(token) is taken for token, taken, _ in model.all())


def test_what_was_read_goes_first():
    records = Records(READ_SHARE * 2, 10**6)
    tokens = [records.put(Taken()) for _ in range(10)]
    for token in tokens[:5]:
        assert records.get(token) is not None
    assert records.stats()["count"] == 10  # a pass that reads them again finds them all
    assert all(records.get(token) is not None for token in tokens[:5])
    records.make_room()
    assert [records.get(t) is not None for t in tokens] == [False] * 3 + [True] * 7


def test_what_was_read_and_cannot_be_made_again_stays_within_the_bounds():
    records = Records(20, 10**6)
    tokens = [records.put(Taken(), once_made=True) for _ in range(10)]
    assert all(records.get(token) is not None for token in tokens)
    others = [records.put(Taken()) for _ in range(15)]
    assert [records.get(t) is not None for t in tokens] == [False] * 5 + [True] * 5
    assert all(records.get(t) is not None for t in others)


class Holder:
    pass


def test_a_record_goes_with_the_array_of_its_token():
    records, holder = Records(10, 1000), Holder()
    token, other = records.put(Taken()), records.put(Taken())
    records.hold([token], holder)
    assert records.get(token) is not None
    del holder
    assert records.get(token) is None
    assert records.get(other) is not None
    assert records.stats()["evicted"] == 0


@pytest.mark.parametrize("read", [False, True])
def test_one_that_cannot_be_made_again_goes_with_its_token_once_it_was_read(read):
    records, holder = Records(10, 1000), Holder()
    token = records.put(Taken(), once_made=True)
    records.hold([token], holder)
    assert not read or records.get(token) is not None
    del holder
    assert (records.get(token) is None) is read


def test_a_token_that_is_collected_under_the_lock():
    records = Records(10, 1000)
    token, holder = records.put(Taken()), Holder()
    records.hold([token], holder)
    with records._lock:
        del holder  # would wait for its own thread
    assert records.stats()["count"] == 1
    records.make_room()
    assert records.stats()["count"] == 0


def test_threads():
    records, errors = Records(64, 10**6), []
    start = threading.Barrier(6)

    def work():
        start.wait()
        for _ in range(500):
            taken = Taken()
            token = records.put(taken)
            found = records.get(token - token % 2)
            if found is not None and found is not taken and token % 2 == 0:
                errors.append(token)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    records.make_room()
    assert records.stats()["count"] <= 64
    assert records.stats()["nbytes"] == 8 * records.stats()["count"]
