"""The contents of everything that some functions can reach, at one moment.

A block of the user's code is run once to be recorded. What it changes in place happens then, while tracing, and not in
the program. So the changes are found and put back, and the block is refused or followed in another way.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from jaxpyop._functions import without_partials
from jaxpyop._paths.snapshot.contents import ABSENT, Kind, is_same, kinds_of
from jaxpyop._paths.snapshot.effects import hides_contents, is_known, reads_outside
from jaxpyop._paths.snapshot.reach import Step, is_iterator, is_opaque, is_plain, names_of, parts

# A body that can reach more objects than this is refused, as its trace would take too long.
MOST_OBJECTS = 200_000


class Snapshot:
    """The contents of what some objects lead to.

    Args:
        roots: names and objects: functions, their arguments.
        home: the user's package, whose functions are looked into even if it is installed.

    Attributes:
        not_restored: the names of objects that cannot be put back, each with the reason: iterators, which go on when
            they are read, and objects whose contents are not seen.
        outside: the names of functions that give a time, a file's contents, or random numbers.
        unknown: the names of other functions that may have an effect which a snapshot does not see.
        too_many: whether there are more objects than can be looked at.
    """

    def __init__(self, roots: Iterable[Step], home: str) -> None:
        self._entries: list[tuple[str, Any, Kind, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self.not_restored: list[Step] = []
        self.outside: list[str] = []
        self.unknown: list[str] = []
        self.too_many = False
        self._look(list(roots), home)

    def _look(self, waiting: list[Step], home: str) -> None:
        # The objects are kept alive by `alive`, so that no two have one `id`.
        seen: set[int] = set()
        alive: list[Any] = []
        while waiting:
            name, value = waiting.pop()
            if is_plain(value) or id(value) in seen or name == "ag__":
                continue
            seen.add(id(value))
            if reads_outside(value):
                self.outside.append(name)
            elif callable(value) and not is_known(value, home):
                self.unknown.append(name)
            if is_opaque(value, home):
                continue
            if hides_contents(value):
                kind_of_object = f"a {type(value).__module__}.{type(value).__qualname__}"
                self.not_restored.append((name, f"{kind_of_object}, and a change of it would not be seen, but happen"))
            alive.append(value)
            self.too_many = len(alive) > MOST_OBJECTS
            if self.too_many:
                return
            if is_iterator(value):
                self.not_restored.append((name, "an iterator, which would go on"))
            for kind in kinds_of(type(value)):
                content = kind.read(value)
                self._entries.append((name, value, kind, content))
                if not isinstance(content, bytes):
                    waiting.extend((name if not isinstance(x, type) else x.__name__, x) for x in content)
            if isinstance(value, types.FunctionType):
                held = value.__globals__
                self._globals.extend((held, n, held.get(n, ABSENT)) for n in names_of(value))
            waiting.extend(parts(name, value, home))

    def holds(self, x: Any) -> bool:
        """Tells whether an object existed at that moment, and can be reached."""
        return any(x is value for _, value, _, _ in self._entries)

    def changed(self) -> str | None:
        """Returns the name of the first object that is not as it was."""
        for name, value, kind, content in self._entries:
            if not is_same(kind.read(value), content):
                return name
        return next((name for held, name, value in self._globals if held.get(name, ABSENT) is not value), None)

    def put_back(self) -> str | None:
        """Undoes all changes since, and returns the name of the first object that was changed."""
        found = self.changed()
        if found is None:
            return None
        for _, value, kind, content in self._entries:
            if not is_same(kind.read(value), content):
                kind.write(value, content)
        for held, name, value in self._globals:
            if value is ABSENT:
                held.pop(name, None)
            else:
                held[name] = value
        return found


def root_of(function: Any) -> Step:
    """Returns a callable as the root of a snapshot, under its own name."""
    return getattr(without_partials(function), "__name__", type(function).__name__), function
