"""What `on_error=` counts: how many elements of an op failed, and the first error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from jaxpyop import _jaxcore
from jaxpyop._host.errors import failure_text
from jaxpyop._host.show import where


class Failures:
    """The failures of one op.

    Args:
        title: how warnings name the op.
        func: the op's function, or None in the copy that a worker process has.

    Attributes:
        count: how many elements failed so far.
        first: the error of the first failure and its inputs, as text.
    """

    def __init__(self, title: str, func: Any) -> None:
        self.count = 0
        self.first = ""
        self._title = title
        self._place = None if func is None else where(func)
        self._lock = threading.Lock()
        self._batches = 0

    def __reduce__(self) -> Any:
        # The copy in a worker counts from zero. The result of each job carries the count back to the op's own process.
        return Failures, (self._title, None)

    def note(self, error: Exception) -> str:
        """Count an element that failed, and warn. Inside `in_batch` the warning waits for the end of the batch.

        Returns:
            The error and the inputs, as text.
        """
        text = failure_text(error, self._title)
        self.add((1, text))
        if not self._batches:
            self._warn()
        return text

    def add(self, noted: tuple[int, str]) -> None:
        """Add a number of failures, and the text of the first of them."""
        with self._lock:
            self.count += noted[0]
            self.first = self.first or noted[1]

    def of_job(self) -> tuple[int, str]:
        """Return what a worker counted in one job. Each job has a copy of its own.

        In the op's own process it returns nothing new, because the failures are counted in the right place already.
        """
        return (self.count, self.first) if self._place is None else (0, "")

    @contextlib.contextmanager
    def in_batch(self) -> Iterator[None]:
        """Delay the warning to the end of a batch, when it is known how many of its elements failed."""
        with self._lock:
            self._batches += 1
        try:
            yield
        finally:
            with self._lock:
                self._batches -= 1
        if self.count and not self._batches:
            self._warn()

    def _warn(self) -> None:
        if self._place is None:
            return
        _jaxcore.warn_once(
            ("on_error=", self._title, self._place),
            f"{self._title}: on_error= filled the results of {self.count} element{'' if self.count == 1 else 's'} that "
            f"failed; later failures come without a warning. The first one: {self.first}",
        )
