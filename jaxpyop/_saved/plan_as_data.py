"""A program as data: its steps, which are exported segments, Python calls, and loops that hold Python calls.

The values of a program are numbered: first its inputs, then the constants that a Python call reads, then the results of
each step. Loading makes a function that performs the steps. The function is traced again, so JAX and `jaxpyop.jit`
treat it like any other function that calls Python.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from jaxpyop import _dtypes, _jaxcore
from jaxpyop._cut import Lifetimes, Program, StaysWhole, call_of, divided, holds_call, needed, segment_of
from jaxpyop._host import Batch
from jaxpyop._op import Call, bind
from jaxpyop._saved.call_as_data import CallsToData
from jaxpyop._saved.file_format import check_type, dtype_named, struct_to_data

# A function that performs the steps of a program: it takes the inputs, and returns the outputs.
Run = Callable[..., list[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Saver:
    """Turns traced programs into data.

    Attributes:
        calls: the Python calls met so far.
        export: makes the bytes of a segment, from a function and the types of its inputs.
        differentiable: whether the loaded program can be differentiated.
        blobs: the segments and constants met so far, as bytes.
    """

    calls: CallsToData
    export: Callable[[Callable[..., Any], Sequence[Any]], bytes]
    differentiable: bool = False
    blobs: list[bytes] = dataclasses.field(default_factory=list)

    def program(self, closed: Any) -> dict[str, Any]:
        """Return a program as data.

        Args:
            closed: its jaxpr.

        Raises:
            ValueError: a part of it cannot be saved.
        """
        try:
            program, steps = divided(closed, cut_loops=True)
        except StaysWhole as reason:
            raise ValueError(f"jaxpyop.export: the program cannot be cut at its Python calls: {reason}") from None
        lifetimes = Lifetimes(program, steps, [False] * len(program.inputs))
        numbers: dict[Any, int] = {value: k for k, value in enumerate(program.inputs)}
        constants: list[list[Any]] = []
        for x in (x for step in steps if not isinstance(step, list) for x in step.invars):
            # Several calls may read the same constant, which is stored once.
            if x not in numbers and x in program.constants:
                numbers[x] = len(numbers)
                constants.append(self._constant(x, program))
        data: list[dict[str, Any]] = []
        if any(jax.export.is_symbolic_dim(size) for value in program.inputs for size in value.aval.shape):
            # This segment takes all inputs and returns nothing. When it is called, `jax.export` checks that the sizes
            # of the inputs agree with each other.
            check = self._segment(program, [], program.inputs, [])
            data.append({**check, "reads": list(range(len(program.inputs))), "makes": []})
        for k, step in enumerate(steps):
            if isinstance(step, list):
                parts = self._segments(program, step, lifetimes.reads[k], lifetimes.makes(k))
            else:
                found: dict[str, Any] = self._call(step) if call_of(step) else _loop_to_data(step, self.program)
                parts = [(found, step.invars, step.outvars)]
            for found, reads, makes in parts:
                found["reads"] = [numbers[x] for x in reads]
                found["makes"] = [struct_to_data(value.aval) for value in makes]
                numbers.update(zip(makes, range(len(numbers), len(numbers) + len(makes))))
                data.append(found)
        return {
            "inputs": [struct_to_data(value.aval) for value in program.inputs],
            "constants": constants,
            "steps": data,
            "outputs": [numbers[value] for value in program.outputs],
        }

    def _constant(self, x: Any, program: Program) -> list[Any]:
        if jax.dtypes.issubdtype(x.aval.dtype, jax.dtypes.extended):
            raise ValueError("jaxpyop.export: a loop that calls Python reads constant keys; pass them as an argument")
        self.blobs.append(np.asarray(program.constants[x], x.aval.dtype).tobytes())
        return [len(self.blobs) - 1, *struct_to_data(x.aval)]

    def _segments(self, program: Program, eqns: list[Any], reads: list[Any], makes: list[Any]) -> list[Any]:
        """Return the exported segments for one segment of the program, each with the values that it reads and makes.

        If the loaded program can be differentiated, there may be several. A segment with an effect stays one, because
        each part would have the effect.
        """
        if not self.differentiable or any(eqn.effects for eqn in eqns):
            return [(self._segment(program, eqns, reads, makes), reads, makes)]
        # An exported segment is differentiated as a whole, with zeros as the cotangents of results that are not used.
        # Zero times infinity is NaN. So each result that can have a cotangent gets a segment of its own.
        groups = [[value] for value in makes if _dtypes.is_inexact(value.aval)]
        groups.append([value for value in makes if not _dtypes.is_inexact(value.aval)])
        found: list[Any] = []
        for group in filter(None, groups):
            part = needed(eqns, group)
            read = {id(x) for eqn in part for x in eqn.invars}
            reads_of_part = [value for value in reads if id(value) in read]
            found.append((self._segment(program, part, reads_of_part, group), reads_of_part, group))
        return found

    def _segment(self, program: Program, eqns: list[Any], reads: list[Any], makes: list[Any]) -> dict[str, Any]:
        names = ", ".join(str(eqn.primitive) for eqn in eqns)
        for eqn in eqns:
            if holds_call(eqn):
                raise ValueError(
                    f"jaxpyop.export: a Python call inside of {eqn.primitive} cannot be saved, because the "
                    "program is not cut there; call it outside"
                )
        function, avals = segment_of(program, eqns, reads, makes), [value.aval for value in reads]
        stops = _find_stops(function, avals, [value.aval for value in makes]) if self.differentiable else []
        try:
            self.blobs.append(self.export(_stopped(function, stops), avals))
        except ImportError:
            # `jax.export` needs flatbuffers.
            raise
        except Exception as error:
            raise ValueError(f"jaxpyop.export: jax.export cannot write the segment ({names}): {error}") from error
        return {"segment": len(self.blobs) - 1, **({"stops": stops} if stops else {})}

    def _call(self, eqn: Any) -> dict[str, Any]:
        call, batch = eqn.params["call"], eqn.params["batch"]
        if call.refusal is not None:
            raise call.refusal()
        described = {"sizes": batch.sizes, "masks": batch.masks, "block": batch.block}
        return {"call": self.calls.number(call), "batch": described}


# -------------------------------------------------------------------- loading


@dataclasses.dataclass(frozen=True, slots=True)
class Loader:
    """Turns data into functions that perform the steps of a program.

    Attributes:
        calls: the Python calls of the program.
        blobs: the segments and constants of the program, as bytes.
    """

    calls: Sequence[Call]
    blobs: Sequence[bytes]

    def program(self, data: dict[str, Any]) -> Run:
        """Return the function that performs a program. It takes the inputs, and returns a list of the outputs.

        Raises:
            Exception: of any type, if the data is not what `Saver` makes.
        """
        constants = [
            np.frombuffer(self.blobs[blob], dtype_named(dtype)).reshape(shape)
            for blob, shape, dtype in data["constants"]
        ]
        steps = [(self._step(step), step["reads"], step["makes"]) for step in data["steps"]]

        def run(*args: Any) -> list[Any]:
            values = [*args, *constants]
            for perform, reads, makes in steps:
                found = perform(*(values[k] for k in reads))
                # Another version of jaxpyop could derive other calls from the same description.
                for value, like in zip(found, makes, strict=True):
                    check_type(value, like, "a result of a step")
                values += found
            return [values[k] for k in data["outputs"]]

        return run

    def _step(self, step: dict[str, Any]) -> Callable[..., list[Any]]:
        if "segment" in step:
            segment: Any = jax.export.deserialize(bytearray(self.blobs[step["segment"]]))
            return _stopped(segment.call, step.get("stops", ()))
        if "call" not in step:
            return _loop_from_data(step, self.program)
        call, stored = self.calls[step["call"]], step["batch"]
        batch = Batch(tuple(stored["sizes"]), tuple(map(tuple, stored["masks"])), stored["block"])
        return functools.partial(bind, call, batch=batch)


# --------------------------------------------------- where a derivative stops
#
# JAX knows symbolically which cotangents are zero. `jax.export` does not: it differentiates a segment as a whole, with
# arrays of zeros in their place. Zero times infinity is NaN, so the inputs that JAX knows to have no cotangent get a
# `stop_gradient` before the segment is exported.


def _find_stops(function: Callable[..., Any], reads: Sequence[Any], makes: Sequence[Any]) -> list[int]:
    """Return the numbers of the inputs through which no derivative of the results goes.

    Args:
        function: the segment, which takes arrays and returns a list of arrays.
        reads: the types of its inputs.
        makes: the types of its results.
    """
    inexact = [k for k, aval in enumerate(reads) if _dtypes.is_inexact(aval)]
    if not all(map(_dtypes.is_inexact, makes)):
        return inexact

    def backward(inputs: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        varied = lambda *xs: function(*_jaxcore.replaced(inputs, inexact, xs))
        return jax.vjp(varied, *(inputs[k] for k in inexact))[1](list(cotangents))

    structs = [[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals] for avals in (reads, makes)]
    try:
        jaxpr, _ = _jaxcore.opened(jax.make_jaxpr(backward)(*structs))
    except Exception:
        # The segment has no derivative. `jax.export` will raise the error.
        return []

    def depends(number: int) -> bool:
        used = [k == number for k in range(len(inexact))]
        return any(_jaxcore.without_dead_code(jaxpr, used)[1][-len(makes) :])

    return [k for number, k in enumerate(inexact) if not depends(number)]


def _stopped(function: Callable[..., Any], stops: Sequence[int]) -> Callable[..., Any]:
    """Return the function with a `stop_gradient` at the inputs with these numbers."""
    if not stops:
        return function
    return lambda *xs: function(*(jax.lax.stop_gradient(x) if k in stops else x for k, x in enumerate(xs)))


# ------------------------------------------------------------ loops and conds
#
# A loop that holds a Python call becomes one of JAX's loops again. Each body in it is a program of its own.


def _loop_to_data(eqn: Any, program: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Turn the equation of a loop or cond into data. `program` turns each body in it, a jaxpr, into data."""
    params, name = eqn.params, eqn.primitive.name
    if name == "scan":
        settings = [*_jaxcore.scan_counts(eqn), params["length"], params["reverse"]]
        bodies = [params["jaxpr"]]
    elif name == "while":
        settings = [params["cond_nconsts"], params["body_nconsts"]]
        bodies = [params["cond_jaxpr"], params["body_jaxpr"]]
    else:
        settings, bodies = [], params["branches"]
    return {"loop": name, "params": settings, "programs": list(map(program, bodies))}


def _loop_from_data(data: dict[str, Any], program: Callable[[dict[str, Any]], Run]) -> Run:
    """Return a function that runs the loop on the operands of its equation."""
    bodies = list(map(program, data["programs"]))
    run = {"scan": _scan, "while": _while, "cond": _cond}[data["loop"]]
    return functools.partial(run, bodies, *data["params"])


def _scan(bodies: Sequence[Run], consts: int, carries: int, length: int, reverse: bool, *args: Any) -> list[Any]:
    (body,) = bodies
    fixed, init, rows = args[:consts], args[consts : consts + carries], args[consts + carries :]

    def turn(carry: Any, row: Any) -> tuple[list[Any], list[Any]]:
        outs = body(*fixed, *carry, *row)
        return outs[:carries], outs[carries:]

    carry, stacked = jax.lax.scan(turn, list(init), list(rows), length=length, reverse=reverse)
    return [*carry, *stacked]


def _while(bodies: Sequence[Run], test_count: int, body_count: int, *args: Any) -> list[Any]:
    test, turn = bodies
    test_consts, body_consts = args[:test_count], args[test_count : test_count + body_count]
    init = list(args[test_count + body_count :])
    return jax.lax.while_loop(
        lambda state: test(*test_consts, *state)[0], lambda state: turn(*body_consts, *state), init
    )


def _cond(bodies: Sequence[Run], index: Any, *operands: Any) -> Any:
    return jax.lax.switch(index, bodies, *operands)
