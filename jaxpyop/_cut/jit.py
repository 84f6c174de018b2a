"""`CutFunction`, which `jaxpyop.jit` returns: it finds the plan for its arguments, and runs it."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._cut.inline import StaysWhole
from jaxpyop._cut.plan import Options, plan_of
from jaxpyop._host import original_of, strip_library_frames
from jaxpyop._op import copy_to_jax

Loops: TypeAlias = Literal["compiled", "python"]

_flatten = jax.tree_util.tree_flatten
_MAX_SIGNATURES = 1024

_lock = threading.Lock()


class _Outcome:
    """The outcome of planning one program: a plan, or the reason why the program stays whole."""

    def __init__(self, closed: Any, donated: Sequence[bool], options: Options) -> None:
        plan, self.reason = None, "it calls no Python, or only inside a loop or a cond"
        try:
            found = plan_of(closed, donated, options)
            plan = found if found.calls or found.loops else None
        except StaysWhole as reason:
            self.reason = str(reason)
        self.plan = plan
        self.is_faster_whole = plan is not None and not plan.loops and _is_faster_whole(plan.calls)
        self.is_whole_everywhere = (
            _jaxcore.is_one_cpu() and self.is_faster_whole if plan else _jaxcore.all_have_callbacks()
        )


class CutFunction:
    """A function that is compiled, and cut at its Python calls. `jaxpyop.jit` makes it.

    It has the methods that `jax.jit` gives a function: `lower`, `trace`, `eval_shape` and `clear_cache`. The program
    that `lower` and `trace` return is the whole one, with callbacks.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, fun: Callable[..., Any], loops: Loops, options: dict[str, Any]) -> None:
        # This copies the attributes of the function, so it has to come before this object's own attributes are set.
        functools.update_wrapper(self, fun)
        # This is called under another transformation: the function becomes part of the outer program, and is not cut.
        self._jit: Any = jax.jit(fun, **options)
        self._guard = guard_of(fun, loops)
        self._whole: Any = jax.jit(self._guard, **options)
        self._made_of = fun, loops, options
        nums, names = options.get("static_argnums"), options.get("static_argnames")
        self._static_nums, self._static_names = _jaxcore.static_arguments(fun, nums, names)
        compiler_options = tuple(sorted((options.get("compiler_options") or {}).items()))
        self._options = Options(getattr(fun, "__name__", "function"), loops, compiler_options)
        self._reason = _reason_in(options)
        self._by_signature: dict[Any, tuple[_Outcome, Any]] = {}
        _jaxcore.clear_with_jax(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function: cut where that is possible and faster, and otherwise as `jax.jit` does."""
        try:
            return self._run(args, kwargs)
        except BaseException as error:
            # JAX's error of a whole program stands for the exception of the user's function, as far as it comes now.
            raise strip_library_frames(original_of(error), "jaxpyop.jit")  # noqa: B904  # It is the same error.

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # This comes first, so that nothing slows down JAX's fast path. It is also right under a transformation.
        if self._guard.all_whole:
            try:
                return self._whole(*args, **kwargs)
            except NotPlannedError:
                pass
        if self._reason or not _jaxcore.at_top_level() or _jaxcore.jax_config.jax_disable_jit:
            return self._jit(*args, **kwargs)
        leaves, key = self._signature(args, kwargs)
        if leaves is None:
            return self._jit(*args, **kwargs)
        try:
            found = self._by_signature.get(key)
        except TypeError:
            # A static argument has no hash, and JAX has an error of its own about it.
            return self._jit(*args, **kwargs)
        outcome, tree = found or self._plan(args, kwargs, key)
        plan = outcome.plan
        if plan is None or (outcome.is_faster_whole and _runs_on_one_cpu(leaves)) or not _are_together(leaves):
            return self._run_whole(args, kwargs, leaves, key)
        return tree.unflatten(plan.run([x if isinstance(x, jax.Array) else _array(x) for x in leaves]))

    def _run_whole(self, args: Any, kwargs: Any, leaves: Sequence[Any], key: Any) -> Any:
        for _ in range(2):
            try:
                return self._whole(*args, **kwargs)
            except NotPlannedError:
                # JAX has dropped the traced program from its cache.
                self._plan(args, kwargs, key)
        return self._jit(*args, **kwargs)

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any] | None, Any]:
        """Return the arguments that are not static, as flat leaves, and a key of everything that a plan depends on.

        Both are None if an argument is traced, or has a type that only JAX itself can accept or refuse.
        """
        static: Any = None
        if self._static_nums or self._static_names:
            args, kwargs, static = self._without_static(args, kwargs)
        leaves, tree = _flatten((args, kwargs))
        try:
            types: list[Any] = [x.aval for x in leaves]
        except AttributeError:
            types = list(map(_type_of, leaves))
            if None in types:
                return None, None
        return leaves, (tree, static, tuple(types), _jaxcore.settings_of_traces(), self._loops_for(leaves))

    def _without_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        count = len(args)
        static = {k % count for k in self._static_nums if -count <= k < count}
        names = sorted(self._static_names & kwargs.keys())
        # The type is part of the key, because 1 and True are equal.
        key = [(k, type(args[k]), args[k]) for k in sorted(static)]
        key += [(name, type(kwargs[name]), kwargs[name]) for name in names]
        rest = {name: value for name, value in kwargs.items() if name not in self._static_names}
        return tuple(a for k, a in enumerate(args) if k not in static), rest, tuple(key)

    def _loops_for(self, leaves: Sequence[Any]) -> str:
        if _jaxcore.is_one_cpu() or _jaxcore.has_callbacks(_jaxcore.client_of(leaves)):
            return self._options.loops
        return "python"

    def _plan(self, args: Any, kwargs: Any, key: Any) -> tuple[_Outcome, Any]:
        options = Options(self._options.name, key[-1], self._options.compiler_options)
        with self._guard.planning():
            traced = self._whole.trace(*args, **kwargs)
            donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
            with _lock:
                plans = self._guard.outcomes.setdefault(traced.jaxpr, {})
                if (donated, options) not in plans:
                    plans[donated, options] = _Outcome(traced.jaxpr, donated, options)
                found = plans[donated, options], traced.out_tree
            if not found[0].is_whole_everywhere:
                self._guard.any_cut = True
        with _lock:
            if len(self._by_signature) >= _MAX_SIGNATURES:
                del self._by_signature[next(iter(self._by_signature))]
            self._by_signature[key] = found
        return found

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return, as text, the steps of the program for these arguments, one per line, or why it stays whole."""
        if self._reason:
            return f"whole: {self._reason}"
        leaves, key = self._signature(args, kwargs)
        if leaves is None:
            return "whole: JAX does not take the arguments"
        outcome, _ = self._plan(args, kwargs, key)
        if outcome.is_faster_whole and _runs_on_one_cpu(leaves):
            return "whole: its stateless NumPy functions are faster as callbacks"
        return f"whole: {outcome.reason}" if outcome.plan is None else str(outcome.plan)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the whole program, with callbacks, as `lower` of a function from `jax.jit` does."""
        return self._jit.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the whole program, as `trace` of a function from `jax.jit` does."""
        return self._jit.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes and dtypes of the results, as `eval_shape` of a function from `jax.jit` does."""
        return self._jit.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all programs and plans."""
        self._jit.clear_cache()
        self._whole.clear_cache()
        self._by_signature.clear()

    def cache_clear(self) -> None:
        """Forget the plans, so that the function is traced again. `jax.clear_caches()` calls this."""
        self._by_signature.clear()
        self._guard.outcomes.clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return CutFunction, self._made_of

    def __repr__(self) -> str:
        return f"<jaxpyop.jit of {self.__wrapped__!r}>"


# The options of `jax.jit` that place the whole program on devices. A program with one of these is not cut.
_PLACEMENT_OPTIONS = ("in_shardings", "out_shardings", "device", "backend")


def _reason_in(options: dict[str, Any]) -> str:
    if _jaxcore.PORTABLE:
        return "programs cannot be cut on public JAX alone"
    given = [name for name in _PLACEMENT_OPTIONS if options.get(name) is not None]
    return f"{', '.join(given)} given" if given else ""


_NUMBERS = (bool, int, float, complex)


def _type_of(leaf: Any) -> Any:
    """Return the part of a plan's key for one argument; None if only JAX itself can accept or refuse the argument."""
    if isinstance(leaf, jax.Array):
        return jax.typeof(leaf)
    if type(leaf) in _NUMBERS:
        return type(leaf)
    if type(leaf) is np.ndarray or isinstance(leaf, np.generic):
        # No jax.Array can hold the tangent of an integer.
        return None if leaf.dtype == jax.dtypes.float0 else (leaf.shape, leaf.dtype)
    return None


def _array(leaf: Any) -> jax.Array:
    # The array is copied, because a body may keep its input, and the caller may change its NumPy array later. The quick
    # `copy_to_jax` does not obey the transfer guard, so with a guard JAX's public function is called.
    is_number = type(leaf) in _NUMBERS
    return jnp.array(leaf) if is_number or _jaxcore.jax_config.jax_transfer_guard_host_to_device else copy_to_jax(leaf)


# ---------------------------------------- which programs stay whole
#
# They cannot be cut, or would be slower.


def _is_faster_whole(calls: Sequence[Any]) -> bool:
    """Tell whether a program with these Python calls is faster with callbacks, on one CPU device.

    The callback of a stateless NumPy function shares memory with XLA, and costs less than the dispatch of another
    segment. A callback with an effect takes the program off JAX's fast dispatch path. A callback that runs JAX
    operations waits for a thread.
    """
    return all(not (call.on_jax or call.stateful) for call in calls)


def _are_together(arrays: Sequence[Any]) -> bool:
    """Tell whether all committed arrays are on the same devices. If they are not, JAX itself raises an error."""
    if _jaxcore.is_one_cpu():
        return True
    return len({frozenset(x.sharding.device_set) for x in arrays if _jaxcore.is_committed(x)}) < 2


# If arrays are spread over several CPU devices, a callback has to gather its inputs. For up to this many bytes, this is
# faster than to gather them between segments.
_SMALL = 1 << 16


def _runs_on_one_cpu(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays are on CPU devices with callbacks, and are small if they are spread over several devices."""
    if _jaxcore.is_one_cpu():
        return True
    nbytes = 0
    for x in arrays:
        nbytes += getattr(x, "nbytes", 0)
        if isinstance(x, jax.Array) and len(x.sharding.device_set) > 1 and nbytes > _SMALL:
            return False
    client = _jaxcore.client_of(arrays)
    return client.platform == "cpu" and _jaxcore.has_callbacks(client)


# ---------------------------------------- the function that JAX compiles
#
# A plan is what a cut program runs by. A program that is not cut "stays whole". JAX finds a compiled program in a third
# of the time that Python needs to look for a plan. So if all programs of a function stay whole, its calls go straight
# to JAX. A call with new types makes JAX trace the function again. The guard, which JAX compiles in place of the
# function, raises an error then, so that the new program is planned first.


class NotPlannedError(Exception):
    """Raised when JAX begins to trace a program that is not planned yet."""


class _Planning(threading.local):
    """Whether this thread is planning a program, so that JAX may trace its function."""

    under_way = False


_planning = _Planning()

# JAX's caches recognize a function by its identity, so a function that is wrapped again gets the same guard. There is a
# guard for each value of `loops`, because `loops` decides which programs are cut.
_guards: weakref.WeakKeyDictionary[Any, dict[str, Guard]] = weakref.WeakKeyDictionary()


def guard_of(fun: Callable[..., Any], loops: str) -> Guard:
    """Return the guard of a function. It lives as long as the function."""
    with _lock:
        try:
            found = _guards.setdefault(fun, {}).setdefault(loops, Guard(fun))
        except TypeError:
            # The function has no hash, and JAX has an error of its own about it.
            return Guard(fun)
    # The key of the found guard may be another object that equals `fun`, and that may be garbage-collected earlier.
    return found if found.__wrapped__ is fun else Guard(fun)


class Guard:
    """Takes the place of a function, without keeping it alive. JAX reads the attributes of the function through it.

    Attributes:
        any_cut: whether a program traced so far is cut, on some device of this process.
        all_whole: whether all programs traced so far stay whole, on every device of this process.
        outcomes: the plans of each jaxpr. If a program is traced again, JAX returns the same jaxpr as long as it keeps
            it, so the plans are kept as long as the jaxpr.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self._fun = weakref.ref(fun)
        self._under_way = 0
        self.any_cut = False
        self.all_whole = False
        self.outcomes: weakref.WeakKeyDictionary[Any, dict[Any, _Outcome]] = weakref.WeakKeyDictionary()

    @property
    def __wrapped__(self) -> Any:
        return self._fun()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fun(), name)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function if its program is being planned, or if JAX runs it without tracing it."""
        if not (_planning.under_way or _jaxcore.at_top_level()):
            raise NotPlannedError
        before, _planning.under_way = _planning.under_way, False
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            _planning.under_way = before

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Allow JAX to trace the function in a `with` block, which sets `any_cut` if the program is cut."""
        with _lock:
            self._under_way += 1
            # JAX caches this trace at once. Another thread whose call goes straight to JAX would use it, so no call may
            # do that until it is known whether the program is cut.
            self.all_whole = False
        before, _planning.under_way = _planning.under_way, True
        try:
            yield
        finally:
            _planning.under_way = before
            with _lock:
                self._under_way -= 1
                self.all_whole = not self.any_cut and not self._under_way
