"""`CutFunction`, which `jaxpyop.jit` returns: it finds the plan for its arguments, and runs it."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes, _jaxcore, _settings, _sharding
from jaxpyop._cut.inline import StaysWhole
from jaxpyop._cut.plan import Options, plan_of
from jaxpyop._host import original_of, strip_library_frames
from jaxpyop._values import copy_to_jax

Loops: TypeAlias = Literal["compiled", "python"]

_MAX_SIGNATURES = 1024

_lock = threading.Lock()


class _Outcome:
    """The outcome of planning one program: a plan, or the reason why the program stays whole."""

    def __init__(self, closed: Any, donated: Sequence[bool], options: Options) -> None:
        self.plan, self.reason = None, "it calls no Python, or only inside a loop or a cond"
        try:
            plan = plan_of(closed, donated, options)
            self.plan = plan if plan.calls or plan.loops else None
        except StaysWhole as reason:
            self.reason = str(reason)
        self.is_faster_whole = self.plan is not None and not self.plan.loops and _is_faster_whole(self.plan.calls)
        self.stays_whole = self.plan is None or self.is_faster_whole  # on one CPU device


# The outcomes of each jaxpr. If a function is traced again, JAX returns the same jaxpr as long as it keeps it, so a
# function that is wrapped again is not planned again.
_outcomes: weakref.WeakKeyDictionary[Any, dict[Any, _Outcome]] = weakref.WeakKeyDictionary()


class CutFunction:
    """A function that is compiled, and cut at its Python calls. `jaxpyop.jit` makes it.

    It has the methods that `jax.jit` gives a function: `lower`, `trace`, `eval_shape` and `clear_cache`. The program
    that `lower` and `trace` return is the whole one, with callbacks.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, fun: Callable[..., Any], loops: Loops, options: dict[str, Any]) -> None:
        # This copies the attributes of the function, so it has to come before this object's own attributes are set.
        functools.update_wrapper(self, fun)
        # The whole program. Under another transformation the function is a part of the outer program, and is not cut.
        self._jit: Any = jax.jit(fun, **options)
        self._made_of = fun, loops, options
        self._static_nums, self._static_names = _jaxcore.static_arguments(self._jit)
        compiler_options = tuple(sorted((options.get("compiler_options") or {}).items()))
        self._options = Options(getattr(fun, "__name__", "function"), loops, compiler_options)
        self._reason = _reason_in(options)
        self._by_signature: dict[Any, tuple[_Outcome, Any]] = {}
        # How many programs JAX had compiled when all of them stayed whole; -1 if one is cut, or that is not known.
        self._whole_programs = -1
        _jaxcore.clear_with_jax(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function: cut where that is possible and faster, and otherwise as `jax.jit` does."""
        try:
            return self._run(args, kwargs)
        except BaseException as error:
            # JAX's error of a whole program stands for the exception of the user's function, as far as it comes now.
            raise strip_library_frames(original_of(error), "jaxpyop.jit")  # noqa: B904  # It is the same error.

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._whole_programs >= 0:
            # JAX finds a compiled program in a third of the time that Python needs to look for a plan. If the program
            # is a new one, or raises, it runs whole this once, and is planned when it is called again.
            known, self._whole_programs = self._whole_programs, -1
            result = self._jit(*args, **kwargs)
            if _jaxcore.program_count(self._jit) == known:
                self._whole_programs = known
            return result
        if self._reason or not _jaxcore.at_top_level() or _settings.jax_config.jax_disable_jit:
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
            result = self._jit(*args, **kwargs)
            compiled = _jaxcore.program_count(self._jit)
            planned = [outcome for outcome, _ in self._by_signature.values()]
            # If JAX has compiled more programs, one is not planned yet.
            if _jaxcore.is_one_cpu() and compiled <= len(planned) and all(outcome.stays_whole for outcome in planned):
                self._whole_programs = compiled
            return result
        return tree.unflatten(plan.run([x if isinstance(x, jax.Array) else _array(x) for x in leaves]))

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any] | None, Any]:
        """Return the arguments that are not static, as flat leaves, and a key of everything that a plan depends on.

        Both are None if an argument is traced, or has a type that only JAX itself can accept or refuse.
        """
        static: Any = None
        if self._static_nums or self._static_names:
            args, kwargs, static = self._without_static(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
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
        names = sorted(kwargs.keys() & self._static_names)
        # The type is part of the key, because 1 and True are equal.
        key = [(k, type(args[k]), args[k]) for k in sorted(static)]
        key += [(name, type(kwargs[name]), kwargs[name]) for name in names]
        rest = {name: value for name, value in kwargs.items() if name not in self._static_names}
        return tuple(a for k, a in enumerate(args) if k not in static), rest, tuple(key)

    def _loops_for(self, leaves: Sequence[Any]) -> str:
        if _jaxcore.is_one_cpu() or _sharding.has_callbacks(_sharding.client_of(leaves)):
            return self._options.loops
        return "python"

    def _plan(self, args: Any, kwargs: Any, key: Any) -> tuple[_Outcome, Any]:
        options = Options(self._options.name, key[-1], self._options.compiler_options)
        traced = self._jit.trace(*args, **kwargs)
        donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
        with _lock:
            plans = _outcomes.setdefault(traced.jaxpr, {})
            if (donated, options) not in plans:
                plans[donated, options] = _Outcome(traced.jaxpr, donated, options)
            if len(self._by_signature) >= _MAX_SIGNATURES:
                del self._by_signature[next(iter(self._by_signature))]
            self._by_signature[key] = plans[donated, options], traced.out_tree
            return self._by_signature[key]

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return, as text, the steps of the program for these arguments, one per line, or why it stays whole."""
        if self._reason:
            return f"whole: {self._reason}"
        leaves, key = self._signature(args, kwargs)
        if leaves is None:
            return "whole: JAX does not take the arguments"
        if not _are_together(leaves):
            return "whole: an argument is on devices of several processes, or two are on different devices"
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
        self.cache_clear()

    def cache_clear(self) -> None:
        """Forget the plans, so that the function is traced again. `jax.clear_caches()` calls this."""
        self._by_signature.clear()
        self._whole_programs = -1

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return CutFunction, self._made_of

    def __repr__(self) -> str:
        return f"<jaxpyop.jit of {self.__wrapped__!r}>"


# The options of `jax.jit` that place the whole program on devices. A program with one of these is not cut.
_PLACEMENT_OPTIONS = ("in_shardings", "out_shardings", "device", "backend")


def _reason_in(options: dict[str, Any]) -> str:
    if not _jaxcore.has("jaxpyop.jit"):
        return f"programs cannot be cut: {_jaxcore.why_without('jaxpyop.jit')}"
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
    # `copy_to_jax` neither obeys the transfer guard nor changes a dtype, so JAX's public function is called there.
    is_number, is_guarded = type(leaf) in _NUMBERS, _settings.jax_config.jax_transfer_guard_host_to_device
    if is_number or is_guarded or _dtypes.canonical_dtype(leaf.dtype) != leaf.dtype:
        return jnp.array(leaf)
    return copy_to_jax(leaf)


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
    """Tell whether all committed arrays are on the same devices, of this process.

    If they are on others, JAX itself raises an error. Of an array on devices of several processes, no process has the
    whole that a function gets.
    """
    committed = [x for x in arrays if _sharding.is_committed(x)]
    devices = {frozenset(x.sharding.device_set) for x in committed}
    return len(devices) < 2 and all(x.is_fully_addressable for x in committed)


def _runs_on_one_cpu(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays are on one CPU device with callbacks. A callback over several devices gathers its inputs."""
    if _jaxcore.is_one_cpu():
        return True
    if any(isinstance(x, jax.Array) and len(x.sharding.device_set) > 1 for x in arrays):
        return False
    client = _sharding.client_of(arrays)
    return client.platform == "cpu" and _sharding.has_callbacks(client)
