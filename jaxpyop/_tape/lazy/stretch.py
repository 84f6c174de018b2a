"""A stretch as one operation: compiled when it comes for the second time, with derivatives of its own.

The first time it is evaluated call by call. This tells which of its results are used later, and only those are
returned by the program. Besides them it returns what the derivatives would take long to compute again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxpyop._tape.ops import Operation, new_id, with_name
from jaxpyop._tape.replay import Node, apply_traced, cotangents_by_slot, tangents_by_slot

if TYPE_CHECKING:
    from jaxpyop._tape.lazy.trie import Place

# A program that turned out to return too little is made again this often. The next one returns everything.
_MAX_VERSIONS = 4


class InputStep(NamedTuple):
    """A step: a value from outside enters."""


class NumberStep(NamedTuple):
    """A step: a Python or NumPy number."""

    value: Any


class CallStep(NamedTuple):
    """A step: a call of an operation on values at these positions."""

    op: Operation
    ins: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]
    is_cheap: bool


class CompiledStretch(NamedTuple):
    """A compiled stretch.

    Attributes:
        op: takes the inputs, then the saved results, which only its pullback reads. Gives the results that later code
            uses, here called the returned ones.
        id: the operation's number.
        run: takes the inputs. Gives the returned results, then the saved ones that are not among them.
        returned: the positions of the returned results.
        saved: where the saved results are among those that `run` returns.
        needs: for each returned result, the inputs that its tangent depends on.
        reads: the inputs that the pullback reads.
    """

    op: Operation
    id: int
    run: Any
    returned: tuple[int, ...]
    saved: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]


class Stretch:
    """What is known of the stretches that end at one place.

    Attributes:
        used: the positions of the results that later code was seen to use.
    """

    __slots__ = ("_lock", "_program", "_returned", "_sights", "_versions", "used")

    def __init__(self) -> None:
        self.used: set[int] = set()
        self._sights = 0
        self._versions = 0
        self._program: CompiledStretch | None = None
        self._returned: set[int] = set()
        self._lock = threading.Lock()

    def use(self, position: int) -> None:
        """Notes that a result was used."""
        if position not in self.used:
            self.used = self.used | {position}

    def program(self, place: Place) -> CompiledStretch | None:
        """Returns the program, None at first sight."""
        found, used = self._program, self.used
        if found is not None and (used is self._returned or used.issubset(found.returned)):
            return found
        with self._lock:
            self._sights += 1
            if self._sights == 1:
                return None
            self._versions += 1
            self._returned = used if self._versions <= _MAX_VERSIONS else _all_results(place)
            self._program = _compile(place, tuple(sorted(self._returned)))
            return self._program


def _all_results(place: Place) -> set[int]:
    return {p for step in place.chain() if type(step.step) is CallStep for p in range(step.first, step.count)}


class _Steps:
    """The steps of a stretch by position."""

    def __init__(self, place: Place) -> None:
        self.places = place.chain()
        self.count = place.count
        self.inputs = [p.first for p in self.places if type(p.step) is InputStep]
        self.calls = [p for p in self.places if type(p.step) is CallStep]
        self.maker = {s: p for p in self.calls for s in range(p.first, p.count)}
        self.tracked = [t for p in self.places for t in p.tracked]

    def values(self, known: dict[int, Any]) -> list[Any]:
        """Computes the values by position from the inputs. Those that are known are not computed."""
        values: list[Any] = [known.get(s) for s in range(self.count)]
        for place in self.places:
            step = place.step
            if type(step) is NumberStep:
                values[place.first] = step.value
            elif type(step) is CallStep and any(s not in known for s in range(place.first, place.count)):
                for s, out in enumerate(step.op.outputs([values[s] for s in step.ins]), place.first):
                    values[s] = known.get(s, out)
        return values

    def saved(self) -> list[int]:
        """Returns the positions of the results that the program has to save.

        They take long to compute, and the backward pass needs them: it reads them, or computes cheap values from them.
        """
        pending = [p.step.ins[i] for p in self.calls if any(p.tracked) for i in p.step.reads]
        seen: set[int] = set()
        while pending:
            if (s := pending.pop()) not in seen:
                seen.add(s)
                if s in self.maker and self.maker[s].step.is_cheap:
                    pending += self.maker[s].step.ins
        return sorted(s for s in seen if s in self.maker and not self.maker[s].step.is_cheap)

    def read_inputs(self, saved: Sequence[int]) -> tuple[int, ...]:
        """Returns the inputs that the backward pass reads, as their numbers."""
        pending = [p.step.ins[i] for p in self.calls if any(p.tracked) for i in p.step.reads]
        seen = set(saved)
        found = set()
        while pending:
            if (s := pending.pop()) not in seen:
                seen.add(s)
                found.add(s)
                if s in self.maker:
                    pending += self.maker[s].step.ins
        return tuple(i for i, s in enumerate(self.inputs) if s in found)

    def needs(self) -> list[set[int]]:
        """Returns for each value the tracked inputs that its tangent depends on, as their numbers."""
        found: list[set[int]] = [set() for _ in range(self.count)]
        for i, s in enumerate(self.inputs):
            if self.tracked[s]:
                found[s].add(i)
        for place in self.calls:
            for s, need in enumerate(place.step.needs, place.first):
                found[s] = set().union(*[found[place.step.ins[i]] for i in need])
        return found

    def nodes(self) -> list[Node]:
        """Returns the calls as the tape records them, with positions as slots."""
        return [
            Node(
                p.step.op,
                p.step.ins,
                tuple([s if t else -1 for s, t in enumerate(p.tracked, p.first)]),
                p.step.needs,
            )
            for p in self.calls
            if any(p.tracked)
        ]


def _compile(place: Place, returned: tuple[int, ...]) -> CompiledStretch:
    steps = _Steps(place)
    by_value = steps.needs()
    needs = tuple([tuple(sorted(by_value[s])) for s in returned])
    saved = steps.saved() if any(needs) else []
    results = [*returned, *(s for s in saved if s not in returned)]
    inputs, nodes = steps.inputs, steps.nodes()

    def run(*arrays: Any) -> list[Any]:
        values = steps.values(dict(zip(inputs, arrays, strict=True)))
        return [values[s] for s in results]

    def bind(*arrays: Any) -> list[Any]:
        return run(*arrays[: len(inputs)])[: len(returned)]

    def pull(
        outnums: Sequence[int], argnums: Sequence[int], args: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Any]:
        values = steps.values(dict(zip([*inputs, *saved], args, strict=True)))
        seeds = [(returned[j], c) for j, c in zip(outnums, cotangents, strict=True)]
        found = cotangents_by_slot(nodes, values, seeds, apply_traced)
        return [found[inputs[i]] for i in argnums]

    def push(outnums: Sequence[int], argnums: Sequence[int], args: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        values = steps.values(dict(zip([*inputs, *saved], args, strict=True)))
        found = tangents_by_slot(nodes, values, {inputs[i]: t for i, t in zip(argnums, tangents)}, apply_traced)
        return [found[returned[j]] for j in outnums]

    op = Operation(bind, bind, multiple_results=True, id=(number := new_id()), pull=pull, push=push)
    reads = steps.read_inputs(saved) if any(needs) else ()
    compiled = jax.jit(with_name(run, "tape_stretch"))
    return CompiledStretch(op, number, compiled, returned, tuple([results.index(s) for s in saved]), needs, reads)
