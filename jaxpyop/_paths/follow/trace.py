"""Tracers that know no values: `bool` is answered from a list of decisions.

The trace is a thin layer above the recording one of `jax.make_jaxpr`: it unboxes,
records with its parent and boxes again. Everything that asks a tracer for its
value is refused, with the user's file and line.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

import jax
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._jaxcore import KnownTrace
from jaxpyop._paths.follow.tree import MARK

# Following one path costs what one trace of the body costs (a millisecond for
# twenty operations), so this many are refused in well under two seconds, also
# where the last ones take a hundred decisions each.
MAX_PATHS = 128

_CONVERSIONS = {
    "__float__": "float(x)",
    "__int__": "int(x)",
    "__complex__": "complex(x)",
    "__index__": "operator.index(x)",
    "__array__": "np.asarray(x)",
    "item": "x.item()",
    "tolist": "x.tolist()",
    "tobytes": "x.tobytes()",
}
_ADVICE = (
    "write that part with jnp.where, jax.lax.cond or jax.lax.while_loop, split the body into several traced ops, or "
    'write mode="eager" to call the body at run time instead'
)
RAISING = 'return a value that says so (jnp.nan, a flag), or write mode="eager" to call the body at run time instead'


class PathError(Exception):
    """A body cannot be followed abstractly.

    Attributes:
        reason: what stood in the way.
        filename: the user's file, or "<unknown>".
        lineno: the line in it, or 0.
        advice: what to write instead.
        remedy: what would have it followed as it is, if anything: an extra, a source.
    """

    remedy = ""

    def __init__(self, reason: str, filename: str, lineno: int, advice: str = _ADVICE) -> None:
        super().__init__(reason, filename, lineno, advice)
        self.reason, self.filename, self.lineno = reason, filename, lineno
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno}: {self.reason}; {self.advice}"


class NeedsPathsError(PathError):
    """A body that was to be recorded in one run asks for a decision."""


class SlowPathsError(PathError):
    """None of a body's paths could be followed in the time there is."""


Place = tuple[str, int]
NOWHERE: Place = ("<unknown>", 0)
_JAX, _NUMPY = (os.path.dirname(os.path.abspath(path)) + os.sep for path in (jax.__file__, np.__file__))
_LIBRARIES = (core.PACKAGE, _JAX, _NUMPY)
_STANDARD_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen")


def is_users(filename: str) -> bool:
    if filename.startswith(_LIBRARIES):
        return False
    # site-packages and dist-packages may lie inside the standard library
    return "-packages" in filename or not filename.startswith(_STANDARD_LIBRARY)


def calling_line(frame: FrameType | None) -> Place:
    """The innermost line of the user's code that led here."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else NOWHERE


def raising_line(error: BaseException) -> Place:
    """The innermost line of the user's code that raised, or else that called."""
    place, step = calling_line(sys._getframe(1)), error.__traceback__
    while step is not None:
        filename = step.tb_frame.f_code.co_filename
        if is_users(filename):
            place = (filename, step.tb_lineno)
        step = step.tb_next
    return place


def is_raised_by_user(error: BaseException) -> bool:
    """Whether a line of the user's raised it, and nothing that it called."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and is_users(step.tb_frame.f_code.co_filename)


@dataclasses.dataclass(eq=False)
class Run:
    """One pass over the body: the answers it gets, and what came of it.

    Attributes:
        preset: the answers to the first questions.
        otherwise: the answer to all later ones.
        limit: as many decisions in one path are too many.
        deadline: the `time.monotonic()` at which to give up.
        follow: traces the paths of a custom derivative's functions into it, or
            None to take their decisions as this run's own.
        straight: whether there is one path only: a question ends the run.
        folds: whether operations on no input are computed, so that constants
            which the body keeps, in a cache for example, are arrays.
        taken: the answers given, with the lines that asked in `lines`.
        origins: which functions the recorded custom derivatives came from.
        error: why the path cannot be followed. Kept apart from the exception,
            which the body may swallow.
    """

    preset: Sequence[bool] = ()
    limit: int = MAX_PATHS
    deadline: float = float("inf")
    follow: Callable[..., list[Any]] | None = None
    straight: bool = False
    folds: bool = False
    otherwise: bool = True
    origins: list[Any] = dataclasses.field(default_factory=list)
    taken: list[bool] = dataclasses.field(default_factory=list)
    lines: list[Place] = dataclasses.field(default_factory=list)
    error: PathError | None = None

    def decide(self, frame: FrameType) -> bool:
        """The answer to the next question, which `frame` asks."""
        self.lines.append(calling_line(frame))
        if self.straight:
            self.error = NeedsPathsError("the body asks for a decision", *self.lines[-1])
            raise self.error
        if len(self.taken) + 1 >= self.limit:  # n decisions are n + 1 paths
            self.stop(_too_many_decisions(self.limit, self.lines), self.lines[-1])
        count = len(self.taken)
        answer = self.preset[count] if count < len(self.preset) else self.otherwise
        self.taken.append(answer)
        return answer

    def check(self) -> None:
        """Refuse to go on after a stop, also where the body swallowed it."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if time.monotonic() > self.deadline:
            place = calling_line(sys._getframe(1))
            self.stop("following the body takes too long", place)

    def stop(self, reason: str, place: Place) -> NoReturn:
        self.error = PathError(reason, *place)
        raise self.error


def _too_many_decisions(limit: int, lines: Sequence[Place]) -> str:
    """Says which bound was met, and at which line if it was a loop."""
    (_, line), count = collections.Counter(lines).most_common(1)[0]
    if 2 * count > len(lines) and count > 8:
        return (
            f"the value-dependent condition in line {line} is asked again and "
            f"again: a loop whose end depends on a traced value cannot be "
            f"followed, nor can more than {limit} paths"
        )
    return too_many_paths(limit)


def too_many_paths(limit: int) -> str:
    return f"the body has more than {limit} paths, which is the bound"


class PathTracer(core.Tracer):
    """A value of the body: a tracer of the recording whose `bool` is decided."""

    __slots__ = ("val",)

    def __init__(self, trace: PathTrace, val: Any) -> None:
        super().__init__(trace, val.aval)
        self.val = val

    def full_lower(self) -> Any:  # asked for by JAX 0.10.0, of one that the body kept
        return self

    def has_answer(self) -> bool:
        """Whether this run has decided what `bool` of it is."""
        return self._trace.has_answer(self)

    def __bool__(self) -> bool:
        return self._trace.decide(self, sys._getframe(1))


def _refusal(name: str, shown: str) -> Callable[..., Any]:
    fallback = getattr(core.Tracer, name, None)

    def refuse(self: PathTracer, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        # JAX itself asks and falls back (indexing tries operator.index).
        if fallback is not None and frame.f_code.co_filename.startswith(_JAX):
            return fallback(self, *args, **kwargs)
        run = self._trace.run
        run.check()
        return run.stop(
            f"{shown} asks for the value of a traced {self.aval.str_short()}",
            calling_line(frame),
        )

    refuse.__name__ = name
    return refuse


for _name, _shown in _CONVERSIONS.items():
    setattr(PathTracer, _name, _refusal(_name, _shown))


class PathTrace(KnownTrace):
    """Unbox, record with the parent, box again."""

    def __init__(self, parent: Any, run: Run) -> None:
        super().__init__()
        self.parent: Any = parent  # None once the run is over
        self.run = run
        self.requires_low = parent.requires_low
        self._boxed: list[PathTracer] = []
        self._answers: dict[int, bool] = {}

    def box(self, x: Any) -> Any:
        # With jax_eager_constant_folding the parent answers with plain arrays.
        if not isinstance(x, core.Tracer):
            return x
        self._boxed.append(PathTracer(self, x))
        return self._boxed[-1]

    def close(self) -> None:
        """Forget the recording's tracers.

        A tracer that the body kept is an error from here on. One that a custom
        derivative's rule closes over lives as long as the recorded equation,
        and must not keep the recording alive (`jax_check_tracer_leaks`).
        """
        super().close()
        for tracer in self._boxed:
            tracer.val = None
        self._boxed.clear()
        self._answers.clear()
        self.parent = None

    def stage_value(self, val: Any) -> Any:
        if self.run.folds and not isinstance(val, core.Tracer):
            return core.EVAL_TRACE.stage_value(val)
        return self.box(self.parent.stage_value(unbox(val)))

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        self.run.check()
        if self.run.folds and _is_constant(primitive, tracers, params):
            return core.EVAL_TRACE.process_primitive(primitive, tracers, params)
        vals = [_operand(x) for x in tracers]
        outs = self.parent.process_primitive(primitive, vals, params)
        return [*map(self.box, outs)] if primitive.multiple_results else self.box(outs)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, *, symbolic_zeros: bool
    ) -> list[Any]:
        self.run.check()
        if self.run.folds and _is_constant(primitive, tracers, {}):
            with core.eval_context():
                return list(fun.call_wrapped(*tracers))
        self.run.origins.append((fun.f, fun.transforms, jvp.f))
        # Symbolic zeros are no JAX values, so such a rule cannot be followed.
        rule = jvp if symbolic_zeros else _followed(jvp, self.run)
        outs = self.parent.process_custom_jvp_call(
            primitive, _followed(fun, self.run), rule,
            [_operand(x) for x in tracers], symbolic_zeros=symbolic_zeros,
        )  # fmt: skip
        return [self.box(x) for x in outs]

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> list[Any]:
        self.run.check()
        if self.run.folds and _is_constant(primitive, tracers, {}):
            with core.eval_context():
                return list(fun.call_wrapped(*tracers))
        self.run.origins.append((fun.f, fun.transforms, fwd.f, bwd.f))
        outs = self.parent.process_custom_vjp_call(
            primitive, _followed(fun, self.run), fwd, bwd,
            [_operand(x) for x in tracers], **params,
        )  # fmt: skip
        return [self.box(x) for x in outs]

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        self.run.check()
        vals = [_operand(x) for x in args]
        outs = self.parent.process_shard_map(primitive, fun, vals, **params)
        return outs.map(self.box)

    def has_answer(self, tracer: PathTracer) -> bool:
        return id(tracer.val) in self._answers

    def decide(self, tracer: PathTracer, frame: FrameType) -> bool:
        """Answer `bool(tracer)`, and mark a new decision in the recording."""
        if tracer.size != 1:  # JAX says what to write instead
            return core.Tracer.__bool__(tracer)
        self.run.check()
        key = id(tracer.val)
        if key not in self._answers:  # `c = a and b` asks `a`, `if c` asks again
            answer = self.run.decide(frame)
            with core.set_current_trace(self.parent):
                pred = tracer.val
                if pred.ndim:
                    pred = jax.lax.reshape(pred, ())
                MARK.bind(pred if pred.dtype == bool else pred != 0)
            self._answers[key] = answer
        return self._answers[key]


def unbox(x: Any) -> Any:
    """The recording's tracer, through all layers (followed rules are nested)."""
    while isinstance(x, PathTracer):
        x = x.val
    return x


def _operand(x: Any) -> Any:
    """What the recording gets: of a NumPy array a copy, for the body may write into it later."""
    return x.copy() if isinstance(x, np.ndarray) else unbox(x)


def _followed(fun: Any, run: Run) -> Any:
    """The function or rule of a custom derivative, its decisions followed too."""
    return core.transformation2(functools.partial(_follow_call, run, fun.stores), fun)()


def _follow_call(run: Run, stores: Any, call: Any, *args: Any) -> list[Any]:
    if run.follow is None:
        return call_traced(call, args, run)
    trees: list[Any] = []

    def once(*xs: Any) -> Sequence[Any]:
        for store in stores:  # each path fills them anew
            if store:
                store.reset()
        outs = call(*xs)
        trees.append([store.val if store else None for store in stores])
        if trees[0] != trees[-1]:
            raise TypeError("the structure of the results differs between paths")
        return outs

    return run.follow(once, args)


def _is_constant(primitive: Any, args: Sequence[Any], params: Mapping[str, Any]) -> bool:
    """Whether an operation has no traced input, and no effect."""
    if any(isinstance(x, core.Tracer) for x in args):
        return False
    inner = jax.tree.leaves(list(params.values()), is_leaf=lambda x: hasattr(x, "effects"))
    effects = any(getattr(x, "effects", None) for x in inner)
    calls = any(word in primitive.name for word in ("callback", "python_call", "debug"))
    return not (effects or calls)


def call_traced(func: Callable[..., Any], args: Sequence[Any], run: Run) -> list[Any]:
    """Run the body with a new trace above the current one."""
    trace = PathTrace(core.current_trace(), run)
    try:
        with core.set_current_trace(trace):
            outs = func(*[trace.box(x) for x in args])
        return [unbox(x) for x in outs]
    finally:
        trace.close()
