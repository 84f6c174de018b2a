"""Tracers without values: `bool` of one is answered from a list of decisions.

`PathTrace` is a thin layer above the trace that records. It unboxes its tracers, has its parent record the operation,
and boxes the results. So effects, constants, PRNG keys, control flow primitives and the rules of custom derivatives
are recorded as under `jax.jit`. Whatever else asks a tracer for its value is refused, with the user's file and line.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.bounds import Bounds
from jaxpyop._paths.follow.errors import NeedsPathsError, PathError
from jaxpyop._paths.follow.number_types import DEPENDS_ON_PATH, Types, depends_on_path, note_types
from jaxpyop._paths.follow.tree import decision_p

# Following one path costs as much as one trace of the body (a millisecond for twenty operations). A body with more
# paths than this is refused in well under two seconds, even if its last paths have a hundred decisions each.
MAX_PATHS = 128


@dataclasses.dataclass(eq=False)
class PathRun:
    """One run of the body along one path: the answers that it gets, and what it recorded besides equations.

    Attributes:
        preset: the answers to the first questions.
        limit: a path with this many decisions is refused.
        deadline: the `time.monotonic()` after which the run is given up.
        follow: traces the paths of the functions of a custom derivative into this run. If it is None, their decisions
            count as decisions of this run.
        one_path: whether the first question ends the run.
        folds: whether operations without traced inputs are computed. Constants that the body keeps, in a cache for
            example, are arrays then.
        otherwise: the answer to all questions after `preset`.
        origins: the functions behind each custom derivative that was recorded.
        taken: the answers that were given.
        lines: the lines that asked for them.
        error: why the path cannot be followed. The body may swallow the exception, so it is kept here, too.
    """

    preset: Sequence[bool] = ()
    limit: int = MAX_PATHS
    deadline: float = float("inf")
    follow: Callable[..., list[Any]] | None = None
    one_path: bool = False
    folds: bool = False
    otherwise: bool = True
    origins: list[Any] = dataclasses.field(default_factory=list)
    taken: list[bool] = dataclasses.field(default_factory=list)
    lines: list[core.SourceLine] = dataclasses.field(default_factory=list)
    error: PathError | None = None

    def decide(self) -> bool:
        """Returns the answer to the next question."""
        self.lines.append(core.users_line())
        if self.one_path:
            self.error = NeedsPathsError("the body asks for a decision", *self.lines[-1])
            raise self.error
        # A path with n decisions is one of at least n + 1 paths.
        if len(self.taken) + 1 >= self.limit:
            self.stop(_too_many_decisions(self.limit, self.lines))
        count = len(self.taken)
        answer = self.preset[count] if count < len(self.preset) else self.otherwise
        self.taken.append(answer)
        return answer

    def check(self) -> None:
        """Raises after a stop, even if the body swallowed the first exception, and after the deadline."""
        if self.error is not None or time.monotonic() > self.deadline:
            self.stop("following the body takes too long")

    def stop(self, reason: str, *advice: str) -> NoReturn:
        """Ends the run at the user's current line. If it was stopped before, the first reason is given again."""
        if self.error is None:
            self.error = PathError(reason, *core.users_line(), *advice)
        raise self.error.with_traceback(None)


def _too_many_decisions(limit: int, lines: Sequence[core.SourceLine]) -> str:
    """Says that the bound was met, and at which line if one line asks most of the questions, as a loop does."""
    (_, line), count = collections.Counter(lines).most_common(1)[0]
    if 2 * count > len(lines) and count > 8:
        return (
            f"the value-dependent condition in line {line} is asked again and again: a loop whose end depends on a "
            f"traced value cannot be followed, nor can more than {limit} paths"
        )
    return too_many_paths(limit)


def too_many_paths(limit: int) -> str:
    return f"the body has more than {limit} paths, which is the bound"


_dispatcher: Any = functools.singledispatch(len)
_NO_DISPATCH = 'write isinstance(x, ...), or write mode="eager" to call the body at run time instead'


def _refuse_dispatch(x: Any) -> None:
    # `singledispatch` chooses by the class, and would take the function for objects of unknown classes.
    x._trace.run.stop("functools.singledispatch does not know a traced value", _NO_DISPATCH)


class PathTracer(core.Tracer):
    """A value of the body: it stands for a tracer of the recording, and its `bool` is decided by the run.

    Attributes:
        val: the tracer of the recording.
        number_types: the types that this has on several paths, if it is a Python number on one and of another type on
            another. Empty for all other values.
        bounds: the least and the greatest value that a Python number can have here, None for all other values.
        is_merged: whether this is what several paths left in a variable, so that it is identical to no other value.
        is_numpy: whether this is an array or a number of NumPy's on some path. `+=` would change the array in place.
    """

    __slots__ = ("bounds", "is_merged", "is_numpy", "number_types", "val")
    __class__ = core.class_unless_asked_by(_dispatcher.__code__, _refuse_dispatch)  # pyright: ignore

    def __init__(self, trace: PathTrace, val: Any) -> None:
        core.Tracer.__init__(self, trace, val.aval)
        self.val = val
        self.is_merged = self.is_numpy = False
        self.number_types: Types = frozenset()
        self.bounds: Bounds | None = None

    def full_lower(self) -> Any:
        # JAX 0.10.0 asks this of a tracer that the body kept.
        return self

    def has_answer(self) -> bool:
        """Tells whether this run has decided its `bool` already."""
        return id(self.val) in self._trace.answers

    def __bool__(self) -> bool:
        return self._trace.decide(self)


# What a bool is when Python runs the function: a bool of Python's, an array, or one or the other depending on the path.
PYTHON, ARRAY, MIXED = "python", "array", "mixed"


class BoolTracer(PathTracer):
    """A traced bool that stands for a bool of Python's, on all paths (PYTHON) or on some of them (MIXED).

    Attributes:
        counts_as: PYTHON or MIXED.
    """

    __slots__ = ("counts_as",)

    def __init__(self, trace: Any, val: Any, counts_as: str) -> None:
        super().__init__(trace, val)
        self.counts_as = counts_as


class PathTrace(core.RecurringTrace):
    """Unboxes tracers, records with the parent trace, and boxes the results."""

    def __init__(self, parent: Any, run: PathRun) -> None:
        super().__init__()
        # None once the run is over.
        self.parent: Any = parent
        self.run = run
        self.requires_low = parent.requires_low
        self._boxed: list[PathTracer] = []
        self.answers: dict[int, bool] = {}

    def box(self, x: Any) -> Any:
        # With jax_eager_constant_folding the parent answers with plain arrays.
        if not isinstance(x, core.Tracer):
            return x
        if getattr(x.aval, "weak_type", False) and x.dtype == bool and not x.ndim:
            # The comparison of two Python numbers is a Python bool, and that of two weakly typed arrays is not.
            return self.keep(BoolTracer(self, x, MIXED))
        return self.keep(PathTracer(self, x))

    def keep(self, tracer: PathTracer) -> PathTracer:
        """Has a tracer forgotten when the run is over."""
        self._boxed.append(tracer)
        return tracer

    def close(self) -> None:
        """Forgets the tracers of the recording.

        From here on a tracer that the body kept is an error. A tracer that the rule of a custom derivative closes over
        lives as long as the recorded equation, and must not keep the recording alive (`jax_check_tracer_leaks`).
        """
        super().close()
        for tracer in self._boxed:
            tracer.val = None
        self._boxed.clear()
        self.answers.clear()
        self.parent = None

    def stage_value(self, val: Any) -> Any:
        if self.run.folds and not isinstance(val, core.Tracer):
            return core.EVAL_TRACE.stage_value(val)
        return self.box(self.parent.stage_value(unbox(val)))

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        self.run.check()
        if depends_on_path(tracers) and _has_program(params):
            self.run.stop(*DEPENDS_ON_PATH)
        if self._is_folded(primitive, tracers, params):
            return core.EVAL_TRACE.process_primitive(primitive, tracers, params)
        outs = self.parent.process_primitive(primitive, list(map(_operand, tracers)), params)
        boxed = [self.box(x) for x in (outs if primitive.multiple_results else [outs])]
        if any(getattr(x, "number_types", None) for x in tracers):
            note_types(boxed, tracers, params)
        return boxed if primitive.multiple_results else boxed[0]

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, *, symbolic_zeros: bool
    ) -> list[Any]:
        # Symbolic zeros are not JAX values, so a rule that takes them cannot be followed.
        rule = jvp if symbolic_zeros else _followed(jvp, self.run)
        process = functools.partial(self.parent.process_custom_jvp_call, symbolic_zeros=symbolic_zeros)
        return self._process_custom_call(process, primitive, fun, (jvp,), (rule,), tracers)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> list[Any]:
        process = functools.partial(self.parent.process_custom_vjp_call, **params)
        return self._process_custom_call(process, primitive, fun, (fwd, bwd), (fwd, bwd), tracers)

    def _process_custom_call(
        self, process: Any, primitive: Any, fun: Any, rules: Any, followed: Any, tracers: Any
    ) -> list[Any]:
        self.run.check()
        if self._is_folded(primitive, tracers, {}):
            with core.eval_context():
                return list(fun.call_wrapped(*tracers))
        self.run.origins.append((fun.f, fun.transforms, *(rule.f for rule in rules)))
        outs = process(primitive, _followed(fun, self.run), *followed, list(map(_operand, tracers)))
        return [self.box(x) for x in outs]

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        self.run.check()
        return self.parent.process_shard_map(primitive, fun, list(map(_operand, args)), **params).map(self.box)

    def _is_folded(self, primitive: Any, args: Sequence[Any], params: Mapping[str, Any]) -> bool:
        """Tells whether an operation is computed now: it has no traced input and no effect."""
        if not self.run.folds or any(isinstance(x, core.Tracer) for x in args):
            return False
        parts = jax.tree.leaves(list(params.values()), is_leaf=lambda x: hasattr(x, "effects"))
        calls = any(word in primitive.name for word in ("callback", "python_call", "debug"))
        return not (calls or any(getattr(x, "effects", None) for x in parts))

    def decide(self, tracer: PathTracer) -> bool:
        """Answers `bool(tracer)`, and marks each new decision in the recording."""
        if tracer.size != 1:
            # JAX's error says what to write instead.
            return core.Tracer.__bool__(tracer)
        self.run.check()
        # `c = a and b` asks `a`, and `if c` asks it again: both get one answer.
        key = id(tracer.val)
        if key not in self.answers:
            answer = self.run.decide()
            with core.set_current_trace(self.parent):
                decision_p.bind(predicate(tracer.val))
            self.answers[key] = answer
        return self.answers[key]


def _has_program(params: Mapping[str, Any]) -> bool:
    """Tells whether an operation has a program inside, which casts its arguments, as `jnp.add` and `lax.cond` have."""
    return any(hasattr(x, "eqns") for x in jax.tree.leaves(list(params.values())))


def predicate(x: Any) -> Any:
    """Returns a traced condition as a boolean scalar."""
    if x.size != 1:
        # JAX's error says what to write instead.
        bool(x)
    if x.ndim:
        x = jax.lax.reshape(x, ())
    return x if x.dtype == bool else x != 0


def unbox(x: Any) -> Any:
    """Returns the tracer of the recording. A tracer has several layers where rules are followed inside a body."""
    while isinstance(x, PathTracer):
        x = x.val
    return x


def _operand(x: Any) -> Any:
    # The body may write into a NumPy array later, so the recording gets a copy.
    return x.copy() if isinstance(x, np.ndarray) else unbox(x)


def _followed(fun: Any, run: PathRun) -> Any:
    """Wraps the function or the rule of a custom derivative, so that its decisions are followed, too."""
    return core.transformation2(functools.partial(_follow_call, run, fun.stores), fun)()


def _follow_call(run: PathRun, stores: Any, call: Any, *args: Any) -> list[Any]:
    if run.follow is None:
        return call_traced(call, args, run)
    trees: list[Any] = []

    def once(*xs: Any) -> Sequence[Any]:
        # Each path fills the stores anew.
        for store in stores:
            if store:
                store.reset()
        outs = call(*xs)
        trees.append([store.val if store else None for store in stores])
        if trees[0] != trees[-1]:
            raise TypeError("the structure of the results differs between paths")
        return outs

    return run.follow(once, args)


def call_traced(func: Callable[..., Any], args: Sequence[Any], run: PathRun) -> list[Any]:
    """Runs the body with a new trace above the current one."""
    if core.PORTABLE:
        # The values are JAX's then, and an `if` on one is JAX's error.
        return list(func(*args))
    trace = PathTrace(core.current_trace(), run)
    try:
        with core.set_current_trace(trace):
            outs = func(*[trace.box(x) for x in args])
        return [unbox(x) for x in outs]
    finally:
        trace.close()
