"""`progress=True`: a bar for the elements of a batch, with the op's name and the number of elements."""

import importlib.util
import re

import jax
import numpy as np
import pytest

from tests.batches import bodies
from tests.batches.programs import LOOPING, F, InCaller, grid
from tests.shared.checks import run
from tests.shared.functions import contrib, every_api, numpy_function


def bar(func, x, **options):
    return run(jax.vmap(lambda x: numpy_function(func, [x], F, progress=True, **options)), x)


@every_api
def test_a_bar_shows_title_and_total(api, capsys):
    f = jax.vmap(lambda x: api(bodies.double, [x], F, progress=True))
    np.testing.assert_array_equal(f(grid(7)), 2 * grid(7))
    said = capsys.readouterr()
    name = "contrib.framework.py_func" if api is contrib else api.__name__
    assert said.out == ""
    assert all(part in said.err for part in (f"{name} 'double': 100%", " 7/7 ", " 0/7 "))


def test_a_bar_of_a_parallel_batch_counts_all_axes(capsys):
    """Also where several elements end at once."""
    pool = {"vmap_method": "parallel", "executor": InCaller(), "chunksize": 3}
    op = lambda x: numpy_function(bodies.double, [x], F, progress=True, name="resample", **pool)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(op))(grid(3, 4)), 2 * grid(3, 4))
    assert re.search(r"numpy_function 'resample': 100%\|.*\| 12/12 ", capsys.readouterr().err)


@pytest.mark.parametrize("method", LOOPING)
def test_a_bar_stops_where_an_element_fails(method, capsys):
    with pytest.raises(ValueError, match="two is too much"):
        bar(bodies.fail_at_two, grid(5), vmap_method=method)
    assert re.search(r"'fail_at_two': +\d+%\|", capsys.readouterr().err)
    bar(bodies.fail_at_two, grid(5) + 3, vmap_method=method)
    assert " 5/5 " in capsys.readouterr().err


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(ImportError, match="progress=True needs tqdm; run `python -m pip install tqdm`"):
        numpy_function(bodies.double, [1.0], F, progress=True)
    numpy_function(bodies.double, [1.0], F)
