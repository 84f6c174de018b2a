"""The trie of stretches: a place in it stands for all that was written down since the last evaluation.

A step leads from one place to the next: an input that enters the stretch, a Python number, or a call. Its key is made
of the primitive, its parameters and its operands' positions, so writing a known operation down is one lookup, and
nothing is hashed when the stretch is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jaxpyop import _jaxcore
from jaxpyop._jaxcore import jaxpr_of, jaxprs_in
from jaxpyop._tape.cache import Cache
from jaxpyop._tape.lazy.stretch import CallStep, InputStep, NumberStep, Stretch
from jaxpyop._tape.ops import Operation, find_op

# All tries are dropped when they have this many places. A place takes about a kilobyte.
MAX_PLACES = 8192
# XLA passes over so many elements in the time of a small call.
_ELEMENTS = 4096
# A third number at the same place becomes an input of the stretch, because it may be a new one each time.
_MAX_NUMBERS = 2
# Keys that hold fresh jaxprs are never found again, so a place keeps few of them.
_MAX_KEYS = 64

# A trie for each combination of JAX's settings.
_roots: dict[Any, Place] = {}
_places = [0]
# By title of a function, how many runs in a row gained nothing. `run` counts them.
losses_in_a_row: dict[str, int] = {}
# What is known of an operation with operands of these types.
_call_infos = Cache(4096)

# The primitives that take less time than reading their results back from memory. The backward pass computes them again.
_CHEAP = frozenset(
    (
        *("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "bitcast_convert_type"),
        *("broadcast_in_dim", "cbrt", "ceil", "clamp", "complex", "concatenate", "conj", "convert_element_type"),
        *("copy", "copy_p", "cos", "cosh", "div", "eq", "erf", "exp", "exp2", "expand_dims", "expm1", "floor"),
        *("ge", "gt", "imag", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "max"),
        *("min", "mul", "ne", "neg", "not", "or", "pad", "pow", "real", "rem", "reshape", "rev", "round", "rsqrt"),
        *("select_n", "sign", "sin", "sinh", "slice", "split", "sqrt", "square", "squeeze", "stop_gradient", "sub"),
        *("tan", "tanh", "transpose", "xor"),
    )
)


class CallInfo(NamedTuple):
    """What is known of a call before it is evaluated.

    Attributes:
        avals: the types of its results.
        needs: for each result, the operands that its tangent depends on.
        reads: the operands that its derivatives read.
        is_cheap: whether the backward pass had better compute it again than read its results.
    """

    avals: tuple[Any, ...]
    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]
    is_cheap: bool


class Place:
    """A place in the trie.

    Attributes:
        up: the place before, None at the root.
        step: how one gets here from there.
        first: the position of the first value that the step adds.
        avals: the types of the values that the step adds.
        tracked: which of them depend on differentiated values.
        count: how many values there are in all.
        depth: how many calls there are in all.
        saving: what one program for all of them saves, in calls of operations on small arrays.
        moves: the places that follow.
        params: the values of the parameters, if the step is a `jit`, whose key has the jaxpr alone.
        stretch: what is known of the stretches that ended here.
    """

    __slots__ = (
        *("avals", "count", "depth", "first", "moves", "numbers", "params", "saving", "step", "stretch", "tracked"),
        "up",
    )

    def __init__(self, up: Place | None, step: Any, avals: Sequence[Any], tracked: Sequence[bool]) -> None:
        self.up = up
        self.step = step
        self.first = up.count if up else 0
        self.avals, self.tracked = tuple(avals), tuple(tracked)
        self.count = self.first + len(self.avals)
        self.depth = (up.depth if up else 0) + (type(step) is CallStep)
        self.saving = up.saving if up else 0
        if type(step) is CallStep:
            self.saving += 1 + max([aval.size for aval in avals], default=0) // _ELEMENTS
        self.moves: dict[Any, Place] = {}
        self.numbers = 0
        self.params: tuple[Any, ...] | None = None
        self.stretch: Stretch | None = None
        _places[0] += 1

    def chain(self) -> list[Place]:
        """Returns the places from the first step to this one."""
        found, place = [], self
        while place.up is not None:
            found.append(place)
            place = place.up
        return found[::-1]

    def after_input(self, aval: Any, tracked: bool) -> Place:
        """Returns the place after a value from outside has entered."""
        found = self.moves.get(key := (InputStep, aval, tracked))
        if found is None:
            found = self.moves[key] = Place(self, InputStep(), (aval,), (tracked,))
        return found

    def after_number(self, number: Any) -> Place | None:
        """Returns the place after a number, None if it had better be an input."""
        # There are two zeros, which are equal, and a NaN, which is not equal to itself.
        key = (NumberStep, type(number), repr(number))
        found = self.moves.get(key)
        if found is None and self.numbers < _MAX_NUMBERS:
            self.numbers += 1
            found = self.moves[key] = Place(self, NumberStep(number), (jax.typeof(number),), (False,))
        return found

    def after_call(self, primitive: Any, params: dict[str, Any], ins: tuple[int, ...], args: Sequence[Any]) -> Any:
        """Returns the place after a call of a primitive, None if it has to be evaluated at once."""
        op = find_op(primitive, params, args)
        if op.id is None or op.linearize_now or op.uses_refs or not _may_wait(primitive, params):
            return None
        found = self.moves.get((op.id, *ins))
        if found is None:
            avals, tracked = self._types_of(ins)
            info = _call_info(op, tuple(avals), tuple(tracked))
            if info is None:
                return None
            step = CallStep(op, ins, info.needs, info.reads, info.is_cheap)
            found = self.moves[op.id, *ins] = Place(self, step, info.avals, [bool(n) for n in info.needs])
            found.params = tuple(params.values())
        return found

    def remember(self, key: Any, following: Place) -> None:
        """Finds a place by this key from now on."""
        if len(self.moves) < _MAX_KEYS:
            self.moves[key] = following

    def _types_of(self, ins: Sequence[int]) -> tuple[list[Any], list[bool]]:
        avals: list[Any] = []
        tracked: list[bool] = []
        for place in self.chain():
            avals += place.avals
            tracked += place.tracked
        return [avals[i] for i in ins], [tracked[i] for i in ins]


def root(settings: tuple[Any, ...]) -> Place:
    """Returns the trie for these settings of JAX."""
    if _places[0] > MAX_PLACES:
        clear()
    found = _roots.get(settings)
    if found is None:
        found = _roots[settings] = Place(None, None, (), ())
    return found


def clear() -> None:
    """Forgets all stretches, and their programs."""
    _roots.clear()
    losses_in_a_row.clear()
    _places[0] = 0


_jaxcore.clear_with_jax(clear)


def _call_info(op: Operation, avals: tuple[Any, ...], tracked: tuple[bool, ...]) -> CallInfo | None:
    found = _call_infos.get(key := (op.id, tracked, *avals))
    if found is None:
        with _jaxcore.eval_context():
            closed = jax.make_jaxpr(lambda *args: list(op.outputs(args)))(*avals)
            if closed.effects:
                return None
            needs, reads = op.dependence(tracked, avals, closed.out_avals) if any(tracked) else ((), ())
        is_cheap = _is_cheap(jaxpr_of(closed))
        found = CallInfo(tuple(closed.out_avals), needs or ((),) * len(closed.out_avals), reads, is_cheap)
        _call_infos.put(key, found)
    return found


def _is_cheap(jaxpr: Any) -> bool:
    def is_cheap(eqn: Any) -> bool:
        if eqn.primitive is _jaxcore.jit_p:
            return _is_cheap(jaxpr_of(eqn.params["jaxpr"]))
        return eqn.primitive.name in _CHEAP

    return all(map(is_cheap, jaxpr.eqns))


def _may_wait(primitive: Any, params: dict[str, Any]) -> bool:
    """Tells whether a primitive computes the same at any time, as a part of any program."""
    name = primitive.name
    if "callback" in name or "device_put" in name or "donat" in name or _jaxcore.allocates_ref(primitive):
        return False
    if primitive is _jaxcore.jit_p:
        if not _jaxcore.is_plain_jit(params) or _jaxcore.has_compiler_options(params):
            return False
    elif primitive in _jaxcore.CUSTOM_CALLS and not jaxprs_in(params):
        return False
    return all(_may_wait(eqn.primitive, eqn.params) for jaxpr in jaxprs_in(params) for eqn in jaxpr.eqns)
