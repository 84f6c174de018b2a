"""A progress bar for long batches, from tqdm, which is an extra."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any


def check_progress(title: str) -> None:
    """Raise unless tqdm can be imported."""
    if importlib.util.find_spec("tqdm") is None:
        raise ImportError(f'{title}: progress=True needs tqdm; pip install "jaxpyop[progress]"')


@contextlib.contextmanager
def bar(total: int, title: str) -> Iterator[Callable[[int], Any]]:
    """A bar in the terminal or notebook; what it gives is called with how many are done by now."""
    from tqdm.auto import tqdm  # an import here keeps the package free of it

    with tqdm(total=total, desc=title) as shown:
        yield lambda done: shown.update(done - shown.n)
