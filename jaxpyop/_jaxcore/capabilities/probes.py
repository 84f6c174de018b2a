"""Probes: each one tries out the parts of JAX that a capability needs, and returns them to the users of the capability.

A probe raises if JAX does not do what is expected. It never starts a client, because the user may still choose the
platform after the import. All probes together take a few milliseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore.capabilities.required import JAX_VERSION, Primitive, ShapedArray, Trace, Tracer

_SCALAR = ShapedArray((), np.dtype(np.float32))


def _expect(condition: bool) -> None:
    if not condition:
        raise AssertionError("JAX does not do what is expected of it")


def callables(*found: Any) -> tuple[Any, ...]:
    """Probes functions that cannot be called without a client or a program."""
    _expect(all(map(callable, found)))
    return found


class _Recorder(Trace):
    """A trace that notes the primitives that JAX gives it, and returns tracers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_low = False
        self.calls: list[tuple[Any, Any, Any]] = []

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        self.calls.append((primitive, tracers, params))
        out = Tracer(self, _SCALAR)
        return [out] if primitive.multiple_results else out

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        self.calls.append((primitive, tracers, params))
        return fun.call_wrapped(*tracers)


def own_traces(set_current_trace: Any, find_top_trace: Any) -> tuple[Any, Any, Any]:
    """Probes that a trace of our own gets each primitive with its operands and parameters.

    Returns:
        The two functions, and the trace that evaluates. It is the current trace in a thread that just began.
    """
    evaluating, trace = find_top_trace(()), _Recorder()
    x = Tracer(trace, _SCALAR)
    identity = jax.custom_jvp(lambda x: x)
    identity.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    with set_current_trace(trace):
        _expect(find_top_trace(()) is trace)
        _expect(isinstance(jax.lax.neg(x), Tracer))
        _expect(isinstance(jax.jit(lambda x: -x)(x), Tracer))
        _expect(identity(x) is x)
    _expect(find_top_trace(()) is evaluating)
    (neg, operands, params), (jit, _, jit_params), (_, custom_operands, _) = trace.calls
    _expect(neg is jax.lax.neg_p and list(operands) == [x] and isinstance(params, dict))
    _expect(jit.multiple_results and "jaxpr" in jit_params and list(custom_operands) == [x])
    trace.invalidate()
    _expect(not x._trace.is_valid())
    return set_current_trace, find_top_trace, evaluating


def trace_identity(set_current_trace: Any) -> bool:
    """Probes that the cache of jitted functions takes two traces with the same `_weakref` for one."""
    function: Any = jax.jit(lambda x: x)
    first, alike, other = _Recorder(), _Recorder(), _Recorder()
    alike._weakref = first._weakref
    sizes: list[int] = []
    for trace in (first, alike, other):
        with set_current_trace(trace):
            function(np.float32(1))
        sizes.append(function._cache_size())
    _expect(sizes == [1, 1, 2])
    return True


def named_axes(trace_ctx: Any, top_axis_env: Any) -> tuple[Any, Any]:
    """Probes that the names of axes can be hidden, and shown again."""
    _expect(trace_ctx.is_top_level() and trace_ctx.axis_env is top_axis_env)
    inside: list[Any] = []

    def function(x: Any) -> Any:
        names = trace_ctx.axis_env
        trace_ctx.set_axis_env(top_axis_env)
        inside.append(trace_ctx.axis_env)
        trace_ctx.set_axis_env(names)
        jax.lax.axis_index("i")
        return x

    jax.eval_shape(jax.vmap(function, axis_name="i"), jax.ShapeDtypeStruct((2,), np.float32))
    _expect(inside[0] is top_axis_env)
    return trace_ctx, top_axis_env


def settings_of_traces(trace_context: Any) -> Callable[[], Any]:
    """Probes that JAX's settings can be read as a hashable key, which changes when a setting changes."""
    before = trace_context()
    with jax.default_matmul_precision("float32"):
        changed = trace_context()
    _expect(hash(before) == hash(trace_context()) and before == trace_context() and before != changed)
    return trace_context


def lazy_tape(
    setter: Any, trace_context: Any, names: Any, axis_env_state: Any, register_cache: Any
) -> tuple[Any, dict[str, Any], Any, Any]:
    """Probes that a setting can be found by its name, changed and put back."""
    config = sys.modules[setter.__module__]
    kind = config.config_ext.Config
    by_name = {s.name: s for s in (axis_env_state, *vars(config).values()) if isinstance(s, kind)}
    before, precision = trace_context(), by_name["jax_default_matmul_precision"]
    _expect(len(before) == len(names()) and axis_env_state.name in names())
    outer = precision.swap_local("float32")
    _expect(dict(zip(names(), trace_context()))[precision.name] == "float32")
    precision.set_local(outer)
    _expect(trace_context() == before and callable(register_cache))
    return names, by_name, config.config_ext.unset, register_cache


_Rule = Callable[..., tuple[list[Any], list[bool], Callable[[Sequence[Any]], Sequence[Any]]]]


def _four_results(rule: _Rule) -> Callable[..., Any]:
    def linearize(is_vjp: bool, perturbed: Sequence[bool], *operands: Any, **params: Any) -> Any:
        outs, has_tangent, push = rule(perturbed, operands, **params)
        return outs, has_tangent, [], lambda residuals, *tangents: push(tangents)

    return linearize


def _five_results(rule: _Rule) -> Callable[..., Any]:
    def linearize(is_vjp: bool, perturbed: Sequence[bool], *operands: Any, **params: Any) -> Any:
        outs, has_tangent, push = rule(perturbed, operands, **params)
        return outs, has_tangent, [], None, lambda residuals, other, *tangents: push(tangents)

    return linearize


def table_of_rules(table: Any) -> dict[Any, Any]:
    """Probes that JAX's rules for a transformation are a dict from primitives to rules."""
    _expect(isinstance(table, dict) and all(isinstance(primitive, Primitive) for primitive in table))
    return table


def linearize_rule(table: Any) -> tuple[Any, Callable[[_Rule], Callable[..., Any]]]:
    """Probes in which order a linearize rule gives its results.

    Returns:
        JAX's table of these rules, and the function that turns a rule of ours into one for the table.
    """

    def rule(perturbed: Sequence[bool], operands: Sequence[Any]) -> Any:
        _expect(list(perturbed) == [True] and len(operands) == 1)
        return list(operands), [True], lambda tangents: [jax.lax.neg(tangents[0])]

    def linearized(x: Any, t: Any) -> Any:
        return jax.linearize(lambda x: primitive.bind(x)[0], x)[1](t)

    # From JAX 0.11.1 on, a rule returns one more result. The likely form comes first, because an error of JAX is slow.
    ways = (_four_results, _five_results) if JAX_VERSION < (0, 11) else (_five_results, _four_results)
    for arrange in ways:
        primitive = Primitive("jaxpyop_probe")
        primitive.multiple_results = True
        primitive.def_abstract_eval(lambda x: [x])
        table[primitive] = arrange(rule)
        try:
            jaxpr = jax.make_jaxpr(linearized)(1.0, 1.0).jaxpr
        except Exception:
            continue
        finally:
            del table[primitive]
        if [eqn.primitive for eqn in jaxpr.eqns] == [jax.lax.neg_p] and jaxpr.eqns[0].invars[0] is jaxpr.invars[1]:
            return table, arrange
    raise AssertionError("a linearize rule of JAX returns something else now")


_HasEffect = Callable[..., bool]


def _kept_in_loops(
    code: types.CodeType, primitive: Any, has_effect: _HasEffect, rule: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a rule for partial evaluation that leaves equations with an effect unevaluated while `code` is running.

    At all other times it calls `rule`, which is JAX's own rule for the primitive, or None if there is none.
    """

    def kept(trace: Any, *tracers: Any, **params: Any) -> Any:
        evaluated, operands, parameters = primitive, tracers, params
        if _is_running(code) and has_effect(**params):
            if not tracers:
                # JAX always evaluates an equation without operands. So it is put into a jitted function with one
                # operand, which is not used.
                unused = np.float32(0)
                (eqn,) = jax.make_jaxpr(jax.jit(lambda _: primitive.bind(**params)))(unused).eqns
                evaluated, operands, parameters = eqn.primitive, (trace.new_const(unused),), eqn.params
            operands = tuple(map(trace.instantiate_const, operands))
        elif rule is not None:
            return rule(trace, *tracers, **params)
        return trace.default_process_primitive(evaluated, operands, parameters)

    return kept


def _is_running(code: types.CodeType) -> bool:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def loop_rule(table: Any) -> tuple[Any, Callable[..., Callable[..., Any]]]:
    """Finds the function of JAX that moves what is the same in each iteration of a scan out of the loop.

    It is the innermost function from the file of `jax.lax.scan` on the stack when the rule of a primitive runs.

    Returns:
        JAX's table of these rules, and a function that makes a rule for a primitive, which may wrap JAX's own rule.
    """
    primitive, file = Primitive("jaxpyop_probe"), inspect.unwrap(jax.lax.scan).__code__.co_filename
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *operands: [_SCALAR])
    found: set[types.CodeType] = set()

    def rule(trace: Any, *tracers: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename != file:
            frame = frame.f_back
        found.add(frame.f_code)
        return _kept_in_loops(frame.f_code, primitive, lambda: True)(trace, *tracers)

    def turn(x: Any, _: Any) -> tuple[Any, None]:
        return x * primitive.bind()[0] * primitive.bind(np.float32(1))[0], None

    def linearized(x: Any) -> Any:
        return jax.linearize(lambda x: jax.lax.scan(turn, x, None, length=2)[0], x)[0]

    table[primitive] = rule
    try:
        jaxpr = jax.make_jaxpr(linearized)(np.float32(1)).jaxpr
    finally:
        del table[primitive]
    (code,) = found
    _expect(all(eqn.primitive is not primitive for eqn in jaxpr.eqns))
    return table, functools.partial(_kept_in_loops, code)


def fast_tracing(wrap_init: Any, trace_to_jaxpr_dynamic: Any) -> Callable[..., Any]:
    """Probes the tracing of flat functions. Returns a function that traces one for given operands."""
    unnamed = jax.api_util.debug_info("jaxpyop", fast_tracing, (), {})._replace(arg_names=None, result_paths=None)

    def make(function: Callable[..., Sequence[Any]], args: Sequence[Any]) -> tuple[Any, Any]:
        avals = [jax.api_util.shaped_abstractify(x) for x in args]
        jaxpr, _, consts = trace_to_jaxpr_dynamic(wrap_init(function, debug_info=unnamed), avals)
        return jaxpr, consts

    jaxpr, consts = make(lambda x: [jax.lax.neg(x)], [_SCALAR])
    _expect([eqn.primitive for eqn in jaxpr.eqns] == [jax.lax.neg_p] and not consts)
    return make


def jaxpr_tools(eval_jaxpr: Any, dce_jaxpr: Any, convert_constvars_jaxpr: Any) -> tuple[Any, Any, Any]:
    """Probes JAX's evaluation of jaxprs, its removal of dead code, and its conversion of constants to inputs."""
    closed = jax.make_jaxpr(lambda x, y: (-x, -y))(1.0, 1.0)
    jaxpr = getattr(closed, "jaxpr", closed)
    smaller, used = dce_jaxpr(jaxpr, [True, False])
    _expect(len(smaller.eqns) == 1 and list(used) == [True, False])
    _expect(len(convert_constvars_jaxpr(jaxpr).invars) == 2)
    shape = jax.eval_shape(lambda x, y: eval_jaxpr(jaxpr, [], x, y), np.float32(1), np.float32(1))
    _expect(len(shape) == 2)
    return eval_jaxpr, dce_jaxpr, convert_constvars_jaxpr


def custom_rules(transformation2: Any) -> Any:
    """Probes the decorator with which a function that JAX has wrapped can be wrapped once more."""
    doubled = transformation2(lambda f, *args: [*f(*args), *f(*args)])
    _expect(callable(doubled))
    return transformation2


def compiled_primitives(apply_primitive: Any, xla_primitive_callable: Any) -> tuple[Any, Any]:
    """Probes that JAX evaluates its primitives by one function, which looks up a compiled program for each."""
    _expect(getattr(jax.lax.neg_p.impl, "func", None) is apply_primitive and callable(xla_primitive_callable))
    return apply_primitive, xla_primitive_callable


def zero_copy(ffi_lowering: Any, abstract_token: Any, module: Any, rule: Any) -> tuple[Any, Any]:
    """Probes that the context of a lowering holds callbacks, tokens and types."""
    fields = {field.name for field in dataclasses.fields(rule)}
    _expect({"module_context", "avals_in", "avals_out", "tokens_in"} <= fields)
    _expect(callable(module.add_host_callback) and callable(rule.set_tokens_out) and callable(rule.replace))
    _expect(callable(ffi_lowering("xla_buffer_python_cpu_callback", has_side_effect=True)))
    return ffi_lowering, abstract_token


def own_effects(kept: Any) -> Any:
    """Probes that a class of effects can be registered as one that JAX does not drop."""

    class Effect:
        pass

    _expect(not kept.contains(Effect()))
    _expect(callable(kept.add_type))
    return kept


def batched_conds(batchers: Any) -> Any:
    """Probes that the batching rules of cond and while_loop are in the table."""
    _expect(callable(batchers[jax.lax.cond_p]) and callable(batchers[jax.lax.while_p]))
    return batchers


def combiners(rules: Any) -> Any:
    """Probes that the lowering rules of the operations that take a function of the user are in the table."""
    for primitive in (jax.lax.reduce_p, jax.lax.reduce_window_p, jax.lax.scatter_p):
        entry = rules[primitive]
        _expect(callable(dataclasses.replace(entry, rule=entry.rule).rule))
    return rules


def source_lines(current_name_stack: Any, user_context: Any) -> tuple[Any, Any]:
    """Probes that the source line and the named scope of equations can be set."""
    with user_context(None, name_stack=current_name_stack()):
        pass
    return current_name_stack, user_context


# ------------------------------------------------------------ who asks for a value


def binding_primitive() -> Any:
    """Returns the primitive that JAX is binding, if that is why JAX asks our caller (`is_valid` of a trace).

    It is `self` in the frame of JAX. If something else asks, the result is not a primitive.
    """
    return sys._getframe(2).f_locals.get("self")


def evaluation() -> dict[str, Any]:
    """Returns the primitive, params and args of the evaluation that asked our caller for a value; {} if none did.

    It looks for a frame of JAX with variables of these names.
    """
    frame = sys._getframe(2)
    for _ in range(3):
        if frame is None:
            break
        found = frame.f_locals
        if {"primitive", "params", "args"} <= found.keys():
            return dict(found)
        frame = frame.f_back
    return {}


class _AskedTrace(Trace):
    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def is_valid(self) -> bool:
        self.seen.append(binding_primitive())
        return True


class _AskedTracer(Tracer):
    def full_lower(self) -> Any:
        self._trace.seen.append(evaluation())
        return 1.0


def unused_tangents() -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Probes that the frames above show which primitive asks for a value, and with which operands and parameters."""
    primitive = Primitive("jaxpyop_probe")
    primitive.def_impl(lambda x, y, *, name: x)
    seen: list[Any] = []
    x = _AskedTracer(_AskedTrace(seen), _SCALAR)
    primitive.bind(x, 2.0, name="probe")
    bound, evaluated = seen
    _expect(bound is primitive and evaluated["primitive"] is primitive)
    _expect(list(evaluated["args"]) == [x, 2.0] and evaluated["params"] == {"name": "probe"})
    return binding_primitive, evaluation
