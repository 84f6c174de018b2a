"""Operations: what the tape makes of a primitive (`find_op`), and which primitives it must linearize at once.

All calls that compute the same share one operation. So its compiled functions, and the dependence of its outputs on its
inputs, serve every recording. A jaxpr among the parameters counts by its structure, because the body of a `scan` over a
fresh lambda is a new object every time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from jaxpyop import _jaxcore
from jaxpyop._functions import closure_of
from jaxpyop._jaxcore import consts_of, jaxpr_of, jaxprs_in
from jaxpyop._tape.keys import UnkeyableError, is_of_library, structural_key

# The operations by the objects in a call's parameters, to find them fast. Only those that are shared, so that no
# function of the user's is kept alive.
_by_parameters: dict[Hashable, tuple[tuple[Any, ...] | None, Operation]] = {}
_MAX_PARAMETERS = 4096


@functools.lru_cache(4096)
def shared(*key: Hashable) -> list[Any]:
    """An empty list, the same one for equal keys, for the caller to fill with what calls share that compute the same.

    That is their operation, or what tracing found out about it.
    """
    return []


@dataclasses.dataclass(eq=False, slots=True)
class Operation:
    """A primitive with its parameters.

    Attributes:
        bind: evaluates the operation under the current trace.
        run: evaluates it on concrete arrays, compiled.
        multiple_results: whether `bind` and `run` return a list.
        linearize_now: whether the operation has to be linearized when it is recorded, and is not shared. It has side
            effects, calls Python, holds constants (NumPy arrays may be written to later) or a rule of the user's (which
            may read variables that change), or is yet to be expanded by JAX.
        calls_python: whether it runs, perhaps deep inside, a function of the user's on the host, or draws numbers that
            no key decides. A second run might then give other values.
        uses_refs: whether it reads or writes a mutable array.
        is_probed: whether a trial trace finds out which outputs depend on which inputs. This is False for a
            `custom_jvp` function, on which JAX notes the types of the results when it is called: a trial would call it
            too early. All its outputs are then taken to depend on all inputs.
        is_new: whether it has a compiled function of its own that has not run yet.
    """

    bind: Callable[..., Any]
    run: Callable[..., Any]
    multiple_results: bool
    linearize_now: bool = False
    calls_python: bool = False
    uses_refs: bool = False
    is_probed: bool = True
    is_new: bool = False

    def outputs(self, args: Sequence[Any]) -> Sequence[Any]:
        """Evaluates the operation under the current trace, and always returns a sequence."""
        out = self.bind(*args)
        return out if self.multiple_results else (out,)


def find_op(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation:
    """Returns the operation of a primitive and its parameters, which is called with `args`."""
    if primitive is _jaxcore.jit_p:
        # Shardings are hashed and compared in Python, which takes long. So the jaxpr alone is the key. The other
        # parameters are compared, and are usually the very same objects.
        key, values = params["jaxpr"], tuple(params.values())
    elif primitive in _jaxcore.LAX_PRIMITIVES:
        key, values = (primitive, *params.items()), None
    else:
        # A parameter of a user's primitive may be 1 in one call and True in the next, or 0.0 and -0.0.
        return _find_by_structure(primitive, params, args)
    try:
        found = _by_parameters.get(key)
    except TypeError:
        # A parameter has no hash.
        return _find_by_structure(primitive, params, args)
    if found is None or found[0] != values:
        found = values, _find_by_structure(primitive, params, args)
        if not found[1].linearize_now:
            if len(_by_parameters) >= _MAX_PARAMETERS:
                _by_parameters.clear()
            _by_parameters[key] = found
    return found[1]


def _find_by_structure(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation:
    if (eqn := _only_equation(primitive, params)) is not None:
        return find_op(eqn.primitive, eqn.params, args)
    # Nothing of an operation that calls Python is compiled here, and a cache would keep the function alive.
    calls_python = _calls_python(primitive, params)
    # JAX makes a function with a closure anew in each call, as the transpose of a linear_call is. It equals no other.
    holds_closure = any(isinstance(value, types.FunctionType) and value.__closure__ for value in params.values())
    has_effects = any(jaxpr.effects for jaxpr in jaxprs_in(params))
    # The attribute marks a type that JAX expands into others first (JAX 0.10 to 0.12).
    is_high = any(getattr(jax.typeof(x), "is_high", False) for x in args)
    is_plain = not (calls_python or holds_closure or has_effects or is_high)
    if is_plain and is_of_library(primitive):
        with contextlib.suppress(UnkeyableError):
            key = (primitive, structural_key(params))
            return _shared(key, lambda: _make_op(primitive, params, args))
    op = _make_op(primitive, params, args, linearize_now=True)
    op.calls_python = calls_python
    return op


def _shared(key: Hashable, make: Callable[[], Operation]) -> Operation:
    # The types inside a jaxpr name the mesh of `jax.set_mesh`, and structural keys do not.
    found = shared(key, jax.sharding.get_abstract_mesh())
    if not found:
        found.append(make())
    return found[0]


def find_op_to_evaluate(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> Operation | None:
    """Returns the shared operation that evaluates a primitive on values without a tangent, if that saves time.

    It does for primitives that hold jaxprs: JAX takes longer to look up a `jit`, and would compile a `scan` over a
    fresh function each time.
    """
    if not jaxprs_in(params):
        return None
    op = find_op(primitive, params, args)
    if op.linearize_now or op.uses_refs:
        return None
    if op.is_new:
        # JAX may have compiled the call already, and it may never come again.
        op.is_new = False
        return None
    return op


def _only_equation(primitive: Any, params: dict[str, Any]) -> Any | None:
    """Returns the equation that a `jit` consists of, as many of jnp's functions do.

    It is evaluated by itself, with the executable that JAX has for it anyway.
    """
    if primitive is not _jaxcore.jit_p:
        return None
    jaxpr = jaxpr_of(params["jaxpr"])
    is_high = _jaxcore.is_high(primitive, (), params)
    if len(jaxpr.eqns) != 1 or jaxpr.constvars or is_high or not _jaxcore.is_plain_jit(params):
        return None
    eqn = jaxpr.eqns[0]
    is_all = list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars)
    holds_functions = eqn.primitive in _jaxcore.CUSTOM_CALLS or jaxprs_in(eqn.params)
    return eqn if is_all and not holds_functions else None


def _calls_python(primitive: Any, params: dict[str, Any]) -> bool:
    inner = [eqn.primitive for eqn in _jaxcore.equations_in(params)]
    # By itself such a primitive is not run again, because the operations that read its result have that.
    draws = any(p.name in ("pure_callback", "rng_uniform") for p in inner)
    return draws or any(getattr(p, "calls_python", False) for p in [primitive, *inner])


def _make_op(primitive: Any, params: dict[str, Any], args: Sequence[Any], linearize_now: bool = False) -> Operation:
    if primitive is _jaxcore.jit_p:
        # The record keeps its values.
        params = params | {"donated_invars": (False,) * len(params["donated_invars"])}
    bind: Any = functools.partial(primitive.bind, **params)
    # JAX's logs and profiles show this name.
    bind.__name__ = primitive.name
    # JAX expands such a primitive before it comes to the `impl`.
    is_high = _jaxcore.is_high(primitive, args, params)
    is_new = not linearize_now and (is_high or _wants_own_function(primitive, params))
    return Operation(
        bind,
        run=jax.jit(bind) if is_new else _jaxcore.compiled(primitive, params),
        multiple_results=primitive.multiple_results,
        linearize_now=linearize_now,
        uses_refs=primitive.ref_allocating or any(_jaxcore.is_ref_type(jax.typeof(x)) for x in args),
        is_new=is_new,
    )


def _wants_own_function(primitive: Any, params: dict[str, Any]) -> bool:
    """Tells whether to compile a call anew rather than use the primitive's `impl`.

    The `impl` of `jit` shares its executable with calls from elsewhere, but takes 15 microseconds longer. That is too
    much for a small function, which compiles quickly. The `impl` of `checkpoint` and of others evaluates equation by
    equation, or compiles anew each time.
    """
    if primitive is _jaxcore.jit_p:
        eqns = params["jaxpr"].eqns
        nested = any(jaxprs_in(eqn.params) for eqn in eqns)
        return len(eqns) <= 16 and not nested and not params["compiler_options_kvs"]
    return not _jaxcore.compiles_alone(primitive, bool(jaxprs_in(params)))


def find_custom_jvp_op(
    primitive: Any, fun: Any, jvp: Any, args: Sequence[Any], params: dict[str, Any]
) -> Operation | None:
    """Returns the shared operation of a `custom_jvp` function of JAX's own, such as relu.

    It is shared among calls of the same types, since JAX notes the results' types on the wrapped functions. A user's
    function is not shared at all: its rule may read variables that change.
    """
    function, rule = _jaxcore.function_behind(fun), _jaxcore.function_behind(jvp)
    for each in (function, rule):
        if each is None or (each not in _jaxs_own and not _is_jaxs_own(each, set())):
            return None
        _jaxs_own.add(each)
    key = (primitive, fun, rule, tuple(params.items()), tuple(map(jax.typeof, args)))
    bind = functools.partial(primitive.bind, subfuns=(fun, jvp), **params)
    try:
        return _shared(key, lambda: Operation(bind, bind, multiple_results=True, is_probed=False))
    except TypeError:
        # A parameter has no hash.
        return None


# The functions that were found to be JAX's own.
_jaxs_own: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_jaxs_own(value: Any, seen: set[int]) -> bool:
    """Tells whether a value is plain data, or a function of JAX's own code, with all that it holds."""
    if id(value) in seen or type(value) in (type(None), bool, int, float, str):
        return True
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        # Its `__module__` may be that of a function which it wraps.
        held, home = closure_of(value).values(), value.__globals__.get("__name__", "")
    elif type(value) in (list, tuple):
        held, home = value, "jax"
    else:
        # A function under `jax.jit` or `jax.custom_jvp`, with its rule.
        held, home = getattr(value, "__dict__", {}), type(value).__module__
        held = held.values() if "__wrapped__" in held else [object()]
    return home.partition(".")[0] in ("jax", "jaxlib") and all(_is_jaxs_own(each, seen) for each in held)


# ------------------------------------------------- arrays that a jitted function closes over


def hoisted(primitive: Any, params: dict[str, Any]) -> tuple[Operation, Sequence[Any]] | None:
    """Returns a shared operation that takes the arrays that a jitted function closes over first, and these arrays.

    Without this, a function that closes over a fresh array in each step would be linearized in each step. With it, all
    calls that differ only in such arrays share one operation.

    The result is None for any other primitive, for a function that cannot be shared, and if there is no constant.
    """
    if primitive is not _jaxcore.jit_p or not _jaxcore.is_plain_jit(params) or not consts_of(params["jaxpr"]):
        return None
    # The shared operation must not keep this call's constants alive, so it holds a jaxpr without them.
    jaxpr, constants = _jaxcore.opened(params["jaxpr"])
    try:
        key = ("hoisted", structural_key({**params, "jaxpr": jaxpr}))
    except UnkeyableError:
        return None

    def make() -> Operation:
        evaluate: Any = functools.partial(_jaxcore.run_jaxpr, jaxpr)
        evaluate.__name__ = params["name"]
        run = jax.jit(evaluate)
        return Operation(run, run, multiple_results=True)

    return _shared(key, make), constants
