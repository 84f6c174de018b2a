"""Derivatives of recorded primitives: one at a time, or a whole line at once.

An `Op` is a primitive with its parameters.  Two calls share an `Op` when they
would compute the same thing, so a jaxpr among the parameters counts by its
structure: the body of a `scan` over a fresh lambda is a new object every time.
An `Op` knows which outputs depend on which inputs (symbolically, so that
`sign` or `stop_gradient` never turn into a numerical zero times infinity),
and how to pull cotangents back and push tangents forward through itself.

A `Program` chains ops.  Walking it evaluates each op's pullback; that same walk
under `jax.jit` is the compiled backward function.  Both the op-wise and
the whole function are compiled when their key is seen for the second
time: compiling costs thousands of evaluations, and a loop whose length
differs in every call never comes back.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from jaxpyop import _jaxcore

# Lines longer than this are walked op by op: tracing a line costs about a
# millisecond per op, and XLA's time grows faster than linearly.
MAX_LINE = 512
# More tracked inputs than this and dependence is probed for all of them
# together (one abstract evaluation instead of one per input).
MAX_PROBES = 8

_SEEN = object()


class Cache:
    """A thread-safe mapping that forgets what was used least recently.

    Uses are counted on the entry, without a lock and with one hash per look;
    an eviction takes the oldest eighth, so that its search pays off.
    """

    def __init__(self, bound: int):
        self.bound = bound
        self._entries: dict[Hashable, list] = {}  # key -> [value, last use]
        self._clock = itertools.count()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry[1] = next(self._clock)
        return entry[0]

    def put(self, key: Hashable, value: Any) -> None:
        with self._lock:
            if key not in self._entries and len(self._entries) >= self.bound:
                last_use = {k: entry[1] for k, entry in self._entries.items()}
                for k in heapq.nsmallest(max(1, self.bound // 8), last_use, key=last_use.get):
                    del self._entries[k]
            self._entries[key] = [value, next(self._clock)]

    def compiled(self, key: Hashable, make: Callable[[], Callable]) -> Callable | None:
        """The function compiled for `key`; None on the key's first sight."""
        found = self.get(key)
        if found is _SEEN:
            found = make()
            self.put(key, found)
        elif found is None:
            self.put(key, _SEEN)
        return found

    def values(self) -> list:
        with self._lock:
            return [entry[0] for entry in self._entries.values()]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


_by_parameters: dict[Hashable, Op] = {}  # exact parameters -> Op, the fast way in
_by_structure = Cache(2048)  # structural key -> Op
op_functions = Cache(2048)  # compiled pullbacks of single ops
line_functions = Cache(256)  # compiled pullbacks of whole lines


class Unkeyable(Exception):
    """A parameter that has no hash: its op cannot be shared."""


def value_type(value: Any) -> Hashable:
    """What a function of `value` is specialised on."""
    try:
        return value.aval  # interned, so that hashing one is cheap
    except AttributeError:
        if isinstance(value, _jaxcore.ShapedArray):
            return value
        return type(value), jax.typeof(value)


# --- structural keys ------------------------------------------------------

_jaxpr_keys: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def structure(value: Any) -> Hashable:
    """A key equal for equal parameters, and for alike jaxprs.

    Raises:
      Unkeyable: `value` holds something without a hash.
    """
    if isinstance(value, _jaxcore.JAXPR_TYPES):
        return _jaxpr_structure(value)
    if type(value) in (tuple, list):
        return (type(value), *map(structure, value))
    if type(value) is dict:
        return (dict, *((k, structure(v)) for k, v in value.items()))
    try:
        hash(value)
    except TypeError:
        raise Unkeyable(type(value).__name__) from None
    return type(value), value  # the type tells 1 from True


def _jaxpr_structure(jaxpr: Any) -> Hashable:
    key = _jaxpr_keys.get(jaxpr)
    if key is None:
        key = _jaxpr_keys[jaxpr] = _Hashed(_walk_jaxpr(jaxpr))
    return key


class _Hashed:
    """A nested tuple that computes its hash once."""

    __slots__ = ("_key", "_hash")

    def __init__(self, key: tuple):
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is _Hashed and self._hash == other._hash and self._key == other._key
        )


def _walk_jaxpr(closed: Any) -> tuple:
    # A ClosedJaxpr wraps a Jaxpr until 0.11; on 0.12 they are one class.
    jaxpr = getattr(closed, "jaxpr", closed)
    numbers: dict = {}

    def name(atom: Any) -> Hashable:
        if isinstance(atom, _jaxcore.Literal):
            # by bytes: 0.0 and -0.0 differ, NaN equals itself
            return np.asarray(atom.val).tobytes(), atom.aval
        return numbers.setdefault(atom, len(numbers))

    binders = [(name(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]
    eqns = tuple(
        (
            eqn.primitive,
            tuple(map(name, eqn.invars)),
            structure(dict(eqn.params)),
            tuple((name(v), v.aval) for v in eqn.outvars),
            eqn.ctx,
        )
        for eqn in jaxpr.eqns
    )
    # Constants count by identity: the op that holds this jaxpr keeps them
    # alive, so an id is not reused while the key is.
    consts = tuple(map(id, getattr(closed, "consts", ())))
    return tuple(binders), eqns, tuple(map(name, jaxpr.outvars)), consts


def _jaxprs(value: Any) -> list:
    if isinstance(value, _jaxcore.JAXPR_TYPES):
        return [value]
    if isinstance(value, (tuple, list)):
        return [j for v in value for j in _jaxprs(v)]
    return []


# --- ops ------------------------------------------------------------------

_op_ids = itertools.count()


class Flow(NamedTuple):
    """How derivatives pass through a call.

    Attributes:
      needs: for each output, the inputs that its tangent depends on.
      reads: the inputs whose values the derivatives read.  Those of a sum
        read none: the record need not keep them.
    """

    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]


class Op:
    """A primitive with its parameters.

    Attributes:
      id: a number of its own, None if the op cannot be shared.
      bind: evaluates it under the current trace.
      run: evaluates it on concrete arrays, compiled.
      multiple: whether `bind` and `run` return a list.
      effectful: running it again would be noticed.
      stateful: it reads or writes a mutable array.
      probed: whether dependence is looked up; else all is taken to depend on
        all, for functions that may not be called before their call is over.
    """

    __slots__ = ("_flows", "bind", "effectful", "id", "multiple", "probed", "run", "stateful")

    def __init__(self, bind: Callable, run: Callable, multiple: bool, effectful: bool = False,
                 stateful: bool = False, shared: bool = True, probed: bool = True):
        self.id = next(_op_ids) if shared else None
        self.bind = bind
        self.run = run
        self.multiple = multiple
        self.effectful = effectful
        self.stateful = stateful
        self.probed = probed
        self._flows: dict[tuple, Flow] = {}

    def outputs(self, args: Sequence) -> Sequence:
        out = self.bind(*args)
        return out if self.multiple else (out,)

    def flow(self, tracked: tuple[bool, ...], args: Sequence, outs: Sequence) -> Flow:
        """How derivatives pass through when these inputs have tangents."""
        if not self.probed:
            return full_flow(tracked, outs)
        # By type too: a rule may take a short cut for, say, empty arrays.
        key = (tracked, *map(value_type, args))
        found = self._flows.get(key)
        if found is None:
            if len(self._flows) >= 1024:
                self._flows.clear()
            found = self._flows[key] = _probe(self, tracked, args)
        return found


def find_op(primitive: Any, params: dict, args: Sequence) -> Op:
    """The shared op of a primitive and its parameters, called with `args`."""
    try:
        key = (primitive, *params.items())
        op = _by_parameters.get(key)
    except TypeError:  # unhashable
        return _find_by_structure(primitive, params, args)
    if op is None:
        op = _find_by_structure(primitive, params, args)
        if len(_by_parameters) >= 4096:
            _by_parameters.clear()  # a plain dict is faster than a Cache, and refills
        _by_parameters[key] = op
    return op


def _find_by_structure(primitive: Any, params: dict, args: Sequence) -> Op:
    inner = _only_equation(primitive, params)
    if inner is not None:
        return find_op(inner.primitive, inner.params, args)
    try:
        key = (primitive, structure(params))
    except Unkeyable:
        return _make_op(primitive, params, args, shared=False)
    op = _by_structure.get(key)
    if op is None:
        op = _make_op(primitive, params, args)
        _by_structure.put(key, op)
    return op


def _only_equation(primitive: Any, params: dict) -> Any | None:
    """The equation that a `jit` consists of: many of jnp's functions are so.

    It is evaluated alone, with the executable that JAX has for it anyway.
    """
    if primitive is not _jaxcore.jit_p:
        return None
    jaxpr = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    if len(jaxpr.eqns) != 1 or jaxpr.constvars or jaxpr.effects or any(params["donated_invars"]):
        return None
    eqn = jaxpr.eqns[0]
    same = list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars)
    plain = set(map(type, (*params["in_shardings"], *params["out_shardings"])))
    if not same or eqn.primitive in _jaxcore.CUSTOM_CALLS or any(map(_jaxprs, eqn.params.values())):
        return None
    return eqn if {t.__name__ for t in plain} <= {"UnspecifiedValue"} else None


def _is_ref(value: Any) -> bool:
    return type(jax.typeof(value)).__name__ == "AbstractRef"


def _make_op(primitive: Any, params: dict, args: Sequence, shared: bool = True) -> Op:
    jaxprs = [j for v in params.values() for j in _jaxprs(v)]
    bind = functools.partial(primitive.bind, **params)
    run = functools.partial(primitive.impl, **params)
    if jaxprs and shared and _wants_own_function(primitive, params):
        run = jax.jit(_named(bind, primitive.name))
    return Op(
        bind, run, primitive.multiple_results, shared=shared,
        effectful=any(j.effects for j in jaxprs),
        stateful=primitive.ref_allocating or any(map(_is_ref, args)),
    )


def _wants_own_function(primitive: Any, params: dict) -> bool:
    """Whether to compile a call anew rather than use the primitive's `impl`.

    The `impl` of `jit` shares the executable with calls from elsewhere, but
    costs 15 microseconds more: too much for what compiles in no time.  That of
    `checkpoint` and others evaluates equation by equation.
    """
    if primitive is _jaxcore.jit_p:
        eqns = params["jaxpr"].eqns
        nested = any(_jaxprs(v) for eqn in eqns for v in eqn.params.values())
        return len(eqns) <= 16 and not nested and not params["compiler_options_kvs"]
    return not isinstance(primitive.impl, functools.partial)  # not apply_primitive


def _named(function: Callable, name: str) -> Callable:
    def call(*args):
        return function(*args)

    call.__name__ = call.__qualname__ = name
    return call


def find_custom_jvp_op(primitive: Any, fun: Any, jvp: Any, params: dict) -> Op | None:
    """The shared op of a `custom_jvp` function of JAX's own, such as relu.

    A user's function is not shared: its rule may read variables that change.
    """
    function, rule = getattr(fun, "f", None), getattr(jvp, "f", None)
    if not (getattr(function, "__module__", None) or "").startswith("jax."):
        return None
    try:
        key = (primitive, fun, rule, tuple(params.items()))
        op = _by_structure.get(key)
    except TypeError:
        return None
    if op is None:
        bind = functools.partial(primitive.bind, subfuns=(fun, jvp), **params)
        op = Op(bind, bind, multiple=True, probed=False)
        _by_structure.put(key, op)
    return op


# --- dependence -----------------------------------------------------------

_differentiable: dict = {}


def is_differentiable(dtype: Any) -> bool:
    """Whether values of this dtype have tangents."""
    found = _differentiable.get(dtype)
    if found is None:
        found = _differentiable[dtype] = bool(jnp.issubdtype(dtype, jnp.inexact))
    return found


def full_flow(tracked: tuple[bool, ...], outs: Sequence) -> Flow:
    """Every output that has a tangent depends on every tracked input."""
    diff = tuple(i for i, t in enumerate(tracked) if t)
    needs = tuple(diff if is_differentiable(o.dtype) else () for o in outs)
    return Flow(needs, tuple(range(len(tracked))))


def _probe(op: Op, tracked: tuple[bool, ...], args: Sequence) -> Flow:
    inputs = [i for i, t in enumerate(tracked) if t]
    groups = [[i] for i in inputs] if len(inputs) <= MAX_PROBES else [inputs]
    live: list[list[int]] = []
    for group in groups:
        for j, alive in enumerate(_live_outputs(op, group, args)):
            if j == len(live):
                live.append([])
            if alive:
                live[j].extend(group)
    needs = tuple(map(tuple, live))
    return Flow(needs, _reads(op, needs, args) if any(needs) else ())


def _reads(op: Op, needs: tuple[tuple[int, ...], ...], args: Sequence) -> tuple[int, ...]:
    """The inputs whose values the pullback of all outputs reads."""
    wanted = tuple(j for j, need in enumerate(needs) if need)
    diff = tuple(sorted({i for j in wanted for i in needs[j]}))

    def pull(args):
        outs = op.outputs(args)
        cotangents = [jnp.zeros(outs[j].shape, outs[j].dtype) for j in wanted]
        return _pull_op(op, wanted, diff, args, cotangents)

    try:
        closed = jax.make_jaxpr(pull)(list(args))
    except Exception:
        return tuple(range(len(args)))  # an error that belongs to the backward pass
    live = _live_equations(closed)[1]
    return tuple(i for i, v in enumerate(closed.jaxpr.invars) if v in live)


def _live_outputs(op: Op, group: list[int], args: Sequence) -> list[bool]:
    """Which outputs have a tangent when the inputs in `group` have one."""
    dtypes: list = []
    alive: list[bool] = []

    @jax.custom_jvp
    def sink(outputs):
        return outputs

    def rule(primals, tangents):
        alive[:] = [type(t) is not SymbolicZero for t in tangents[0]]
        return primals[0], tangents[0]

    sink.defjvp(rule, symbolic_zeros=True)

    def run(*args):
        def inner(*diff):
            outputs = list(op.outputs(_filled(args, group, diff)))
            dtypes[:] = [o.dtype for o in outputs]
            return sink([o for o in outputs if is_differentiable(o.dtype)])

        primals = [args[i] for i in group]
        return jax.jvp(inner, primals, primals)

    try:
        jax.eval_shape(run, *args)
    except Exception:
        # No rule for it: the error belongs to the backward pass, if one comes.
        shapes = jax.eval_shape(lambda *a: list(op.outputs(a)), *args)
        return [is_differentiable(s.dtype) for s in shapes]
    flags = iter(alive)
    return [is_differentiable(d) and next(flags, False) for d in dtypes]


def _filled(args: Sequence, positions: Sequence[int], values: Sequence) -> list:
    args = list(args)
    for i, value in zip(positions, values, strict=True):
        args[i] = value
    return args


# --- pulling back and pushing forward -------------------------------------


class Node(NamedTuple):
    """One recorded call; `ins` are slots of values, `outs` slots or -1."""

    op: Op
    ins: tuple[int, ...]
    outs: tuple[int, ...]  # -1: an output without a tangent
    needs: tuple[tuple[int, ...], ...]  # see Flow
    linear: Any  # a Linear, if it was linearised when it was recorded


def _pull_op(op: Op, wanted: tuple, diff: tuple, args: Sequence, cotangents: Sequence) -> Sequence:
    # Only outputs with a cotangent are asked for, so that JAX sees the others
    # as symbolic zeros (an svd's U and V are not differentiated for s alone).
    def function(*primals):
        outputs = op.outputs(_filled(args, diff, primals))
        return [outputs[j] for j in wanted]

    _, pull = jax.vjp(function, *(args[i] for i in diff))
    return pull(list(cotangents))


def _push_op(op: Op, wanted: tuple, diff: tuple, args: Sequence, tangents: Sequence) -> Sequence:
    def function(*primals):
        outputs = op.outputs(_filled(args, diff, primals))
        return [outputs[j] for j in wanted]

    return jax.jvp(function, [args[i] for i in diff], list(tangents))[1]


def _compiled_or_plain(rule: Callable, op: Op, wanted: tuple, diff: tuple, args: list,
                       vectors: list) -> Sequence:
    """Applies a rule, compiled on the second sight of the op and its types."""
    if op.id is None:
        return _direct(rule, op, wanted, diff, args, vectors)
    present = tuple([i for i, a in enumerate(args) if not isinstance(a, _jaxcore.ShapedArray)])
    key = (rule, op.id, wanted, diff, present, *map(value_type, args))
    function = op_functions.compiled(
        key, lambda: _compile_rule(rule, op, wanted, diff, present, list(map(_blank, args))))
    if function is None:
        return _direct(rule, op, wanted, diff, args, vectors)
    return function([args[i] for i in present], vectors)


def _compile_rule(rule: Callable, op: Op, wanted: tuple, diff: tuple, present: tuple,
                  blanks: list) -> Callable:
    def apply(arrays, vectors):
        return _direct(rule, op, wanted, diff, _filled(blanks, present, arrays), vectors)

    return jax.jit(_named(apply, f"tape{rule.__name__}"))


def _blank(value: Any) -> Any:
    return value if isinstance(value, _jaxcore.ShapedArray) else None


def _direct(rule: Callable, op: Op, wanted: tuple, diff: tuple, args: Sequence,
            vectors: list) -> Sequence:
    # A value that no derivative reads was dropped, down to its type; zeros do
    # as well, and are dead code when compiled.
    args = [_zeros(a) if isinstance(a, _jaxcore.ShapedArray) else a for a in args]
    return rule(op, wanted, diff, args, vectors)


def walk_back(nodes: Sequence[Node], values: Sequence, seeds: Sequence[tuple[int, Any]],
              evaluate: Callable = _compiled_or_plain) -> dict[int, Any]:
    """Cotangents by slot, from those of the outputs (`seeds`)."""
    cotangents: dict[int, Any] = {}
    for slot, cotangent in seeds:
        _add(cotangents, slot, cotangent)
    for node in reversed(nodes):
        wanted = tuple(j for j, s in enumerate(node.outs) if s in cotangents)
        if not wanted:
            continue
        given = [cotangents.pop(node.outs[j]) for j in wanted]
        for slot, cotangent in _pull_node(node, values, wanted, given, evaluate):
            _add(cotangents, slot, cotangent)
    return cotangents


def _add(cotangents: dict[int, Any], slot: int, cotangent: Any) -> None:
    old = cotangents.get(slot)
    cotangents[slot] = cotangent if old is None else jax.lax.add(old, cotangent)


def _pull_node(node: Node, values: Sequence, wanted: tuple, given: list,
               evaluate: Callable) -> list[tuple[int, Any]]:
    diff = tuple(sorted({i for j in wanted for i in node.needs[j]}))
    if node.linear is not None:
        results = node.linear.pull(wanted, given)
    else:
        args = [values[s] for s in node.ins]
        results = evaluate(_pull_op, node.op, wanted, diff, args, given)
    return [(node.ins[i], c) for i, c in zip(diff, results, strict=True)]


def walk_forward(nodes: Sequence[Node], values: Sequence, tangents: dict[int, Any]) -> dict:
    """Tangents by slot, from those of the inputs."""
    tangents = dict(tangents)
    for node in nodes:
        diff = tuple(i for i in range(len(node.ins)) if node.ins[i] in tangents)
        wanted = tuple(j for j, need in enumerate(node.needs) if not set(diff).isdisjoint(need))
        if not wanted:
            continue
        diff = tuple(i for i in diff if any(i in node.needs[j] for j in wanted))
        given = [tangents[node.ins[i]] for i in diff]
        if node.linear is not None:
            results = node.linear.push(wanted, dict(zip(diff, given, strict=True)))
        else:
            args = [values[s] for s in node.ins]
            results = _compiled_or_plain(_push_op, node.op, wanted, diff, args, given)
        tangents.update((node.outs[j], t) for j, t in zip(wanted, results, strict=True))
    return tangents


class Linear:
    """A call that was linearised when it was recorded.

    For what must not run again in the backward pass (effects), and for rules
    that belong to one call (a user's `custom_jvp` and `custom_vjp`).
    """

    def __init__(self, pull: Callable, outputs: dict[int, Any], inputs: dict[int, Any]):
        self._pull = pull
        self._outputs = {j: _like(o) for j, o in outputs.items()}
        self._inputs = {i: _like(v) for i, v in inputs.items()}

    def pull(self, wanted: tuple[int, ...], cotangents: Sequence) -> Sequence:
        given = dict(zip(wanted, cotangents, strict=True))
        return self._pull([given[j] if j in given else _zeros(like)
                           for j, like in self._outputs.items()])

    def push(self, wanted: tuple[int, ...], tangents: dict[int, Any]) -> list:
        # The transpose of the pullback: it exists where forward mode does
        # not, for custom_vjp, and runs no effect again.
        full = tuple(tangents[i] if i in tangents else _zeros(like)
                     for i, like in self._inputs.items())
        (outputs,) = jax.linear_transpose(self._pull, list(self._outputs.values()))(full)
        found = dict(zip(self._outputs, outputs, strict=True))
        return [found[j] for j in wanted]

    def arrays(self) -> list:
        return jax.tree.leaves(self._pull)


def _like(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _zeros(like: Any) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype)


def linearise(function: Callable, diff: tuple[int, ...], args: Sequence) -> tuple[list, Linear]:
    """Calls `function(*args)`, a list, once; also returns its derivative.

    Args:
      function: evaluates under the current trace.
      diff: the positions of the arguments to differentiate in.
      args: all arguments.
    """
    positions: tuple[int, ...] = ()

    def split(*primals):
        nonlocal positions
        outputs = function(*_filled(args, diff, primals))
        flags = [is_differentiable(o.dtype) for o in outputs]
        positions = tuple(j for j, flag in enumerate(flags) if flag)
        return ([o for o, flag in zip(outputs, flags, strict=True) if flag],
                [None if flag else o for o, flag in zip(outputs, flags, strict=True)])

    primals = [args[i] for i in diff]
    floats, pull, outputs = jax.vjp(split, *primals, has_aux=True)
    computed = dict(zip(positions, floats, strict=True))
    for j, value in computed.items():
        outputs[j] = value
    return outputs, Linear(pull, computed, dict(zip(diff, primals, strict=True)))


# --- whole lines ----------------------------------------------------------


class Program(NamedTuple):
    """A recorded straight line, without its values.

    Attributes:
      nodes: the calls, in order.
      ins: the slots of the inputs, -1 for those without a tangent.
      outs: the slots of the outputs, -1 for constants.
      free: the slots that no node computes: inputs and constants.
      key: equal for alike programs; None if it cannot be shared.
    """

    nodes: Sequence[Node]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    free: tuple[int, ...]
    key: Hashable | None


def pull_program(program: Program, values: Sequence, cotangents: Sequence) -> list:
    """Cotangents of a program's inputs from those of its outputs.

    Compiled on the second sight of the program with these types and with the
    same outputs' cotangents missing.
    """
    given = tuple(j for j, c in enumerate(cotangents) if c is not None and program.outs[j] >= 0)
    if not given:
        return [None] * len(program.ins)
    seeds = [cotangents[j] for j in given]
    if program.key is not None:
        key = (program.key, given, *(value_type(values[s]) for s in program.free))
        function = line_functions.compiled(
            key, lambda: _compile_program(program, given, values, seeds))
        if function is not None:
            return function(values, seeds)
    return _pull_program(program, given, _compiled_or_plain, values, seeds)


def _pull_program(program: Program, given: tuple, evaluate: Callable, values: Sequence,
                  seeds: Sequence) -> list:
    pairs = [(program.outs[j], seed) for j, seed in zip(given, seeds, strict=True)]
    found = walk_back(program.nodes, values, pairs, evaluate)
    return [found.get(s) for s in program.ins]


def _compile_program(program: Program, given: tuple, values: Sequence, seeds: Sequence) -> Callable:
    """The compiled `_pull_program`, given only the values that it uses.

    XLA would drop what is unused as well, but each argument costs time in
    every call.
    """
    present = [s for s, v in enumerate(values)
               if v is not None and not isinstance(v, _jaxcore.ShapedArray)]

    def pull(arrays, seeds):
        full = _filled(values, present, arrays)
        return _pull_program(program, given, _direct, full, seeds)

    closed, results = jax.make_jaxpr(pull, return_shape=True)([values[s] for s in present], seeds)
    eqns, live = _live_equations(closed)
    binders = dict(zip(present, closed.jaxpr.invars[: len(present)], strict=True))
    used = [s for s in present if binders[s] in live]
    function = jax.jit(_named(functools.partial(
        _evaluate, closed, eqns, [binders[s] for s in used], jax.tree.structure(results)),
        "tape_pullback"))
    return lambda values, seeds: function([values[s] for s in used], seeds)


def _live_equations(closed: Any) -> tuple[list, set]:
    """The equations that the outputs depend on, and all variables they read."""
    def variables(atoms):
        return (a for a in atoms if not isinstance(a, _jaxcore.Literal))

    live = set(variables(closed.jaxpr.outvars))
    eqns = []
    for eqn in reversed(closed.jaxpr.eqns):
        if eqn.effects or not live.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            live.update(variables(eqn.invars))
    return eqns[::-1], live


def _evaluate(closed: Any, eqns: list, used: list, structure: Any, values: Sequence,
              seeds: Sequence) -> Any:
    env = dict(zip(used, values, strict=True))
    env.update(zip(closed.jaxpr.invars[-len(seeds):], seeds, strict=True))
    env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, _jaxcore.Literal) else env[atom]

    for eqn in eqns:
        primitive = eqn.primitive
        outs = primitive.bind(*map(read, eqn.invars), **primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, outs if primitive.multiple_results else [outs], strict=True))
    return jax.tree.unflatten(structure, map(read, closed.jaxpr.outvars))


def push_program(program: Program, values: Sequence, tangents: Sequence) -> list:
    """Tangents of a program's outputs from those of its inputs."""
    seeds = {s: t for s, t in zip(program.ins, tangents, strict=True) if s >= 0 and t is not None}
    found = walk_forward(program.nodes, values, seeds)
    return [found.get(s) for s in program.outs]
