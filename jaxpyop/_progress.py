"""A progress bar for long batches, from tqdm, which is an extra."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Iterator
from typing import Any


def check(title: str) -> None:
    """Raise unless tqdm can be imported."""
    if importlib.util.find_spec("tqdm") is None:
        raise ImportError(f'{title}: progress=True needs tqdm; pip install "jaxpyop[progress]"')


def shown(results: Iterator[Any], total: int, title: str) -> Generator[Any]:
    """The results, with a bar in the terminal or notebook that counts them."""
    from tqdm.auto import tqdm  # an import here keeps the package free of it

    yield from tqdm(results, total=total, desc=title)
