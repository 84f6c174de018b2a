"""The record store against a model: a list of what is live, oldest first."""

import gc
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpyop._calls import NO_RECORD
from jaxpyop._records import Records

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
    records.resize(max_count=4)
    assert records.stats()["count"] == 4
    records.resize(max_bytes=25)
    assert records.stats()["count"] == 2
    assert records.stats()["max_count"] == 4
    assert records.get(tokens[-1]) is not None
    records.clear()
    assert records.stats()["count"] == records.stats()["nbytes"] == 0
    assert records.get(tokens[-1]) is None
    assert records.put(Taken()) not in tokens


@pytest.mark.parametrize(
    ("bounds", "match"),
    [((0, 10), "max_count must be at least 1"), ((1, -1), "max_bytes must not be negative")],
    ids=["count", "bytes"],
)
def test_bounds_are_checked(bounds, match):
    with pytest.raises(ValueError, match=match):
        Records(*bounds)
    records = Records(5, 50)
    with pytest.raises(ValueError, match=match):
        records.resize(*bounds)
    assert (records.max_count, records.max_bytes) == (5, 50)


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


@settings(max_examples=80, deadline=None, database=None)
@given(
    max_count=st.integers(1, 6),
    max_bytes=st.integers(0, 60),
    sizes=st.lists(st.integers(0, 80), max_size=30),
    start=st.sampled_from([1, LAST - 3, LAST]),
)
def test_against_model(max_count, max_bytes, sizes, start):
    records, model = Records(max_count, max_bytes), []
    records._next = start
    given_out = set()
    for size in sizes:
        taken = Taken(size)
        token = records.put(taken)
        assert 1 <= token <= LAST
        assert token not in [t for t, _ in model]
        given_out.add(token)
        model.append((token, taken))
        while len(model) > 1 and (len(model) > max_count or sum(t.nbytes for _, t in model) > max_bytes):
            model.pop(0)
        assert all(records.get(t) is r for t, r in model)
        assert all(records.get(t) is None for t in given_out - {t for t, _ in model})
    stats = records.stats()
    assert stats["count"] == len(model)
    assert stats["nbytes"] == sum(t.nbytes for _, t in model)
    assert stats["evicted"] == len(sizes) - len(model)


def test_threads():
    records, errors = Records(64, 10**6), []
    start = threading.Barrier(6)

    def work():
        start.wait()
        for _ in range(500):
            taken = Taken()
            token = records.put(taken)
            found = records.get(token)
            if found is not None and found is not taken:
                errors.append(token)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert records.stats()["count"] == 64
    assert records.stats()["evicted"] == 6 * 500 - 64
