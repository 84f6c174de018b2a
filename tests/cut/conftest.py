"""What the tests of `jaxpyop.jit` share."""

from __future__ import annotations

import pytest

from jaxpyop._cut import jit as cut


@pytest.fixture
def always_cut(monkeypatch):
    """Programs of stateless NumPy functions are cut too, which would be faster whole."""
    monkeypatch.setattr(cut, "_is_faster_whole", lambda calls: False)
