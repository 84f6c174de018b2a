"""The derivatives of one call, by JAX: `Derivative` when it is asked for, `linearize` when the call is recorded.

Most calls are differentiated in the backward pass, by `jax.vjp` of their operation. The calls that are linearized at
once, and never evaluated again, are those that would be noticed if they ran in the backward pass too (side effects,
Python functions), and those whose rules belong to one call (a user's `custom_jvp` and `custom_vjp`).

Which outputs of a call depend on which inputs, and which values its derivatives read, is found by tracing, without
evaluating anything. Dependence is symbolic: what passes through `sign` or `stop_gradient` has no derivative at all. A
derivative of zero would not do, because zero times infinity is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.sharding import SingleDeviceSharding

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._dtypes import is_inexact, zeros_of
from jaxpyop._jaxcore import replaced
from jaxpyop._refusal import refusal
from jaxpyop._tape.operations import Operation, shared

# What comes back so often is compiled. Compiling takes as long as thousands of evaluations. JAX compiles the primitives
# that it evaluates one by one anyway, so up to here a recording compiles what an eager `jax.grad` does.
OFTEN = 4

# A function from all inputs to all outputs.
Outputs = Callable[[Sequence[Any]], Sequence[Any]]


class Traced:
    """A function of lists of arrays as a jaxpr, without what its results do not need.

    Attributes:
        used: which of all the arrays it reads.
    """

    def __init__(self, function: Callable[..., Any], *lists: list[Any]) -> None:
        """Traces `function(*lists)`. The arrays may be types."""
        types = [[_dtypes.struct_of(v) if isinstance(v, _jaxcore.ShapedArray) else v for v in vs] for vs in lists]
        closed, results = jax.make_jaxpr(function, return_shape=True)(*types)
        jaxpr, self._consts = _jaxcore.opened(closed)
        self._jaxpr, flags = _jaxcore.without_dead_code(jaxpr)
        self._positions = [i for i, is_used in enumerate(flags) if is_used]
        self.used = flags[len(self._consts) :]
        self._tree = jax.tree.structure(results)
        self._calls = 0
        self._compiled = jax.jit(self._run)

    def _run(self, operands: list[Any]) -> list[Any]:
        return _jaxcore.run_jaxpr(self._jaxpr, *operands)

    def _operands(self, lists: Sequence[Sequence[Any]]) -> list[Any]:
        # Each argument of a compiled function takes time in every call, so it gets only those that it reads.
        values = [*self._consts, *itertools.chain(*lists)]
        found = [values[i] for i in self._positions]
        # For a value that no derivative reads, only its type was kept. Zeros can take its place.
        return [zeros_of(v) if isinstance(v, _jaxcore.ShapedArray) else v for v in found]

    def inlined(self, *lists: Sequence[Any]) -> Any:
        """Evaluates the function operation by operation, under the current trace."""
        return jax.tree.unflatten(self._tree, self._run(self._operands(lists)))

    def compiled(self, *lists: Sequence[Any]) -> Any:
        """Evaluates the function as one program."""
        return jax.tree.unflatten(self._tree, self._compiled(self._operands(lists)))

    def __call__(self, *lists: Sequence[Any]) -> Any:
        """Evaluates the function, as one program if this is called often, or is recorded itself.

        A second derivative may have to record it again, and then it has to give the same bits.
        """
        self._calls += 1
        return self.compiled(*lists) if self._calls > OFTEN or not _jaxcore.is_eager() else self.inlined(*lists)


class Linear:
    """The derivative of one call, at its values.

    Attributes:
        forward: whether the derivative maps tangents of inputs to tangents of outputs. Otherwise it maps cotangents of
            outputs to cotangents of inputs. Either map is made by transposing the other. Nothing runs again for it.
    """

    def __init__(
        self, derivative: Callable[..., Any], forward: bool, inputs: dict[int, Any], outputs: dict[int, Any]
    ) -> None:
        """Keeps a derivative, and the types of its inputs and outputs by position."""
        self._derivative = derivative
        self.forward = forward
        self._inputs = {i: jax.ShapeDtypeStruct(v.shape, v.dtype) for i, v in inputs.items()}
        self._outputs = {j: jax.ShapeDtypeStruct(o.shape, o.dtype) for j, o in outputs.items()}

    def pull(self, outnums: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Returns the inputs' cotangents for these cotangents of the outputs `outnums`."""
        nonzero = dict(zip(outnums, cotangents, strict=True))
        full = [nonzero[j] if j in nonzero else zeros_of(like) for j, like in self._outputs.items()]
        if self.forward:
            return jax.linear_transpose(self._derivative, *self._inputs.values())(full)
        return self._derivative(full)

    def push(self, outnums: Sequence[int], tangents: dict[int, Any]) -> list[Any]:
        """Returns the tangents of the outputs `outnums` for these tangents of inputs, by position."""
        full = tuple(tangents[i] if i in tangents else zeros_of(like) for i, like in self._inputs.items())
        outputs = self._derivative(*full) if self.forward else self._transposed(full)
        found = dict(zip(self._outputs, outputs, strict=True))
        return [found[j] for j in outnums]

    def _transposed(self, tangents: Sequence[Any]) -> Sequence[Any]:
        try:
            return jax.linear_transpose(self._derivative, list(self._outputs.values()))(tangents)[0]
        except Exception as error:
            text = (
                "forward mode needs the transpose of a custom_vjp function's backward pass, which is not linear; "
                "put jax.jit around the derivative, which drops unused tangents, or use jax.jacrev twice"
            )
            raise refusal(TypeError(text)) from error

    def keep_values(self) -> None:
        """Copies the NumPy arrays that the derivative reads, because the function may change them later."""
        self._derivative = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, self._derivative)

    def arrays(self) -> list[Any]:
        """Returns the arrays that the derivative keeps alive."""
        return jax.tree.leaves(self._derivative)


def linearize(
    function: Callable[..., Sequence[Any]], argnums: Sequence[int], args: Sequence[Any], forward: bool
) -> tuple[list[Any], Linear]:
    """Calls `function(*args)` once, under the current trace.

    Args:
        function: returns a sequence of arrays.
        argnums: the positions of the arguments to differentiate in.
        args: all arguments.
        forward: whether to keep the map of tangents, else the map of cotangents. A `custom_vjp` function has only the
            map of cotangents. For a Python function the map of tangents is kept, because its map of cotangents cannot
            be transposed.

    Returns:
        The outputs of the function, and its derivative.
    """

    def split(*primals: Any) -> tuple[list[Any], list[Any]]:
        outputs = function(*replaced(args, argnums, primals))
        return [o for o in outputs if is_inexact(o)], [None if is_inexact(o) else o for o in outputs]

    primals = [args[i] for i in argnums]
    transform = jax.linearize if forward else jax.vjp
    floats, derivative, rest = transform(split, *primals, has_aux=True)
    outnums = [j for j, o in enumerate(rest) if o is None]
    inputs, outputs = dict(zip(argnums, primals, strict=True)), dict(zip(outnums, floats, strict=True))
    return replaced(rest, outnums, floats), Linear(derivative, forward, inputs, outputs)


# ------------------------------------------------------------ which outputs depend on which inputs

# Each probe traces the function once. More inputs than this are probed as one group: an output that depends on one is
# taken to depend on all.
_MAX_PROBES = 8


class Dependence(NamedTuple):
    """How derivatives pass through a call.

    Attributes:
        needs: for each output, the inputs that its tangent depends on.
        reads: the inputs whose values the derivatives read. The derivatives of a sum read none, so that the record
            need not keep them.
    """

    needs: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]


class Derivative(NamedTuple):
    """The derivative of an operation's outputs `outnums` in its inputs `argnums`.

    If it is `forward`, it takes tangents of these inputs to tangents of these outputs. Otherwise it takes cotangents of
    the outputs to cotangents of the inputs.
    """

    op: Operation
    outnums: tuple[int, ...]
    argnums: tuple[int, ...]
    forward: bool

    def apply(self, args: Sequence[Any], vectors: Sequence[Any]) -> Sequence[Any]:
        """Applies the derivative at values (or, where it reads none, at types) to tangents or cotangents."""

        # The derivatives of all other outputs are symbolic zeros, which cost nothing: where only the s of an svd is
        # used, its U and V are not differentiated.
        def restricted(*primals: Any) -> list[Any]:
            outputs = self.op.outputs(replaced(args, self.argnums, primals))
            return [outputs[j] for j in self.outnums]

        primals = [args[i] for i in self.argnums]
        if self.forward:
            return jax.jvp(restricted, primals, list(vectors))[1]
        return jax.vjp(restricted, *primals)[1](list(vectors))


def typeof(x: Any) -> Any:
    """Returns the type of a value as `jax.typeof` does, in less time for an array without a mesh."""
    if isinstance(x, _jaxcore.ShapedArray):
        return x
    if not isinstance(x, _jaxcore.Tracer) and type(getattr(x, "sharding", None)) is SingleDeviceSharding:
        return x.aval
    return jax.typeof(x)


def traced_derivative(derivative: Derivative, args: Sequence[Any], vectors: Sequence[Any]) -> Traced:
    """Returns a derivative at values of the types of `args`, traced once for all calls of a shared operation.

    When the backward pass comes, the derivative of all outputs is usually there: `_find_reads` traced it while the
    call was recorded.
    """
    # JAX traces a function differently under other settings, such as `jax.enable_x64` and `jax.set_mesh`.
    key = derivative, _jaxcore.settings_of_traces(), *map(typeof, args)
    found = shared(*key)
    if not found:
        found.append(Traced(derivative.apply, list(args), list(vectors)))
    return found[0]


def full_dependence(tracked: Sequence[bool], outs: Sequence[Any]) -> Dependence:
    """Every output that can have a tangent depends on every tracked input."""
    inputs = tuple(i for i, t in enumerate(tracked) if t)
    return Dependence(tuple(inputs if is_inexact(o) else () for o in outs), tuple(range(len(tracked))))


def dependence_of(op: Operation, tracked: tuple[bool, ...], args: Sequence[Any], outs: Sequence[Any]) -> Dependence:
    """Returns how derivatives pass through an operation when the `tracked` inputs have tangents."""
    if not op.is_probed:
        return full_dependence(tracked, outs)
    # The types matter too: a rule may take a short cut for empty arrays, say.
    found = shared(op, tracked, *map(typeof, args))
    if not found:
        found.append(_find_dependence(op, tracked, args, outs))
    return found[0]


def _find_dependence(op: Operation, tracked: Sequence[bool], args: Sequence[Any], outs: Sequence[Any]) -> Dependence:
    inputs = [i for i, t in enumerate(tracked) if t]
    groups = [[i] for i in inputs] if len(inputs) <= _MAX_PROBES else [inputs]
    probes = [_perturbed_outputs(op.outputs, group, args) for group in groups]
    needs = tuple(
        tuple(i for group, perturbed in zip(groups, by_group, strict=True) if perturbed for i in group)
        for by_group in zip(*probes, strict=True)
    )
    return Dependence(needs, _find_reads(op, needs, args, outs) if any(needs) else ())


def _perturbed_outputs(function: Outputs, group: list[int], args: Sequence[Any]) -> list[bool]:
    """Tells which outputs have a tangent when the inputs in `group` have one.

    All outputs go through a function with a rule of its own. JAX hands that rule a `SymbolicZero` for each output
    without a tangent.
    """
    inexact: list[bool] = []
    perturbed: list[bool] = []

    def rule(primals: Any, tangents: Any) -> Any:
        perturbed[:] = [type(t) is not SymbolicZero for t in tangents[0]]
        return primals[0], tangents[0]

    observed = jax.custom_jvp(lambda outputs: outputs)
    observed.defjvp(rule, symbolic_zeros=True)

    def probe(*args: Any) -> Any:
        def inner(*primals: Any) -> Any:
            outputs = function(_jaxcore.replaced(args, group, primals))
            inexact[:] = map(is_inexact, outputs)
            return observed([o for o in outputs if is_inexact(o)])

        primals = [args[i] for i in group]
        return jax.jvp(inner, primals, primals)

    try:
        jax.eval_shape(probe, *args)
    except Exception:
        # The function has no derivative. That is an error of the backward pass, if one comes.
        return list(map(is_inexact, jax.eval_shape(lambda *a: list(function(a)), *args)))
    # JAX does not call the rule where no output has a tangent.
    flags = iter(perturbed)
    return [flag and next(flags, False) for flag in inexact]


def _find_reads(
    op: Operation, needs: Sequence[Sequence[int]], args: Sequence[Any], outs: Sequence[Any]
) -> tuple[int, ...]:
    """Finds the inputs whose values the pullback of all outputs reads."""
    outnums = tuple(j for j, need in enumerate(needs) if need)
    argnums = tuple(sorted({i for need in needs for i in need}))
    try:
        derivative = Derivative(op, outnums, argnums, forward=False)
        pullback = traced_derivative(derivative, args, [typeof(outs[j]) for j in outnums])
    except Exception:
        # As above: the function has no derivative.
        return tuple(range(len(args)))
    return tuple(i for i, is_used in enumerate(pullback.used[: len(args)]) if is_used)
