"""The body of the user's function: it calls the function between checked inputs and checked results.

`UserBody` takes what the function returns, and `FilledBody` (`out=True`) lends it the results to fill.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop import _jaxcore
from jaxpyop._host import call_where_op_runs, forget_locals, kept_of, lend_results, metrics, return_results
from jaxpyop._native import Filled
from jaxpyop._op.body.advice import advise, call_and_warn_of_changes, call_with_advice
from jaxpyop._op.body.body import Body, element_structs, full
from jaxpyop._op.request import Op, is_differentiable
from jaxpyop._refusal import refusal
from jaxpyop._values import (
    Arguments,
    Inputs,
    Leaf,
    Struct,
    check_shape,
    converted,
    converted_at_once,
    encode,
    fill_shape,
    hidden_value_error,
    kind_of,
    match,
    nodes_of,
    static,
    traced_value_in,
    with_shapes,
)


def _with_scalars(arrays: Sequence[Any]) -> list[Any]:
    """Replace arrays without axes by NumPy's scalars, which are hashable, and are indices, as TensorFlow does."""
    return [a[()] if a.ndim == 0 else a for a in arrays]


def _is_immutable(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_immutable, value))
    return type(value) in (type(None), bool, int, float, complex, str, bytes)


class UserBody(Body):
    """The user's function between checked inputs and checked results."""

    def __init__(self, op: Op, inputs: Inputs) -> None:
        super().__init__(op)
        self.inputs = inputs
        self.absent_fills = [leaf.fill for leaf in op.spec.leaves]
        self._shapes: dict[Any, list[Struct]] = {}
        self._promised: dict[Any, Sequence[Leaf]] = {}
        # The leaf of a function with one result, which the op returns as it is. `__call__` reads such a result in a
        # shorter way, which matters because a batch has many elements.
        spec = op.spec
        is_one = isinstance(spec.skeleton, Leaf) and spec.returned_spec is None
        self._only_leaf = spec.leaves[0] if is_one and op.output_shapes is None else None

    @property
    def identity(self) -> tuple[Any, ...]:
        # One function may give results of other shapes for other numbers or texts among its inputs. What may change
        # between the forward and the backward pass is left out: its receipts would be taken for those of another call.
        fixed = [leaf for leaf in self.inputs.leaves if _is_immutable(leaf)]
        declared = [(leaf.shape, leaf.dtype) for leaf in self.op.spec.leaves]
        return *super().identity, repr(fixed), *declared

    @functools.cached_property
    def arguments(self) -> Arguments:
        """The arguments of the function, as derivative rules are given them."""
        return Arguments(self.op.func, self.inputs, self.title, without="out" if self.op.out else "")

    def arguments_of(self, arrays: Sequence[Any], rule: Any) -> tuple[Any, ...]:
        """The arguments with these arrays, in the order of the function's signature, for a rule."""
        # A rule that is an op would make arrays of the numbers that the function gets as they are.
        as_it_is = static if is_differentiable(rule) else lambda value: value
        return self.arguments.filled(self._as_given(arrays), as_it_is)

    def _as_given(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if not self.op.on_jax:
            return _with_scalars(arrays)
        return self.inputs.wrap_keys(arrays) if any(self.inputs.key_impls) else arrays

    def _returned(self, arrays: Sequence[Any]) -> Any:
        """What the function returns."""
        op, inputs = self.op, self.inputs
        if inputs.tree is None:
            return op.func(*(arrays if op.on_jax else _with_scalars(arrays)))
        args, kwargs = inputs.unflatten(self._as_given(arrays))
        return call_and_warn_of_changes(op, args, kwargs) if inputs.may_hold_state else op.func(*args, **kwargs)

    def returned(self, arrays: Sequence[Any]) -> Any:
        """What the function returns; an exception that it raises has a note of its inputs, and advice."""
        op = self.op
        try:
            return metrics.timed(op.name, "runs", self._returned, arrays) if metrics.reports else self._returned(arrays)
        except Exception as error:
            self._advise(error, arrays)
            raise

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        returned, leaf = self.returned(arrays), self._only_leaf
        if leaf is not None and not lead:
            value = converted_at_once(returned, leaf.dtype, on_jax=self.op.on_jax)
            if value is not None and (leaf.shape is None or leaf.shape == value.shape):
                return [value]
        return self.results_of(returned, arrays, lead)

    def results_of(self, returned: Any, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """The results for what the function returned, if that is what `Tout` declares."""
        op = self.op
        try:
            values = encode(op, match(op.spec.returned, returned, op.title), converted, lead)
            self.check_results(values, arrays, lead)
        except Exception as error:
            refusal(error)
            if isinstance(error, ValueError):
                self._advise(error, arrays)
            raise
        return values

    def _advise(self, error: Exception, arrays: Sequence[Any]) -> None:
        advise(error, self.op, "func", self.op.func, lambda: self.inputs.unflatten(self._as_given(arrays)))

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        spec = self.op.spec
        if spec.returned_spec is not None or any(self.inputs.key_impls):
            return None
        args, kwargs = self.inputs.unflatten(arrays)
        return args, kwargs, jax.tree.unflatten(spec.tree, range(len(spec.leaves))), False

    # ------------------------------------------------------------ promised shapes

    def check_results(self, values: Sequence[Any], arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> None:
        for k, (value, leaf) in enumerate(zip(values, self.promised(arrays, lead))):
            if leaf.shape is not None and value.shape != (*lead, *leaf.shape):
                check_shape(value.shape, leaf, lead, "declared", self.op.origin_of_array(k), self.op.title)

    def promised(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Leaf]:
        """The declared results, for inputs with the batch axes `lead`."""
        op = self.op
        if op.output_shapes is None:
            return op.spec.leaves
        key = tuple([(a.shape[len(lead) :] if lead else a.shape, a.dtype) for a in arrays])
        if key not in self._promised:
            structs = element_structs(arrays, lead)
            args, kwargs = self.inputs.unflatten(self.inputs.key_structs(structs) if op.on_jax else structs)
            self._promised[key] = with_shapes(op.spec, op.output_shapes(*args, **kwargs), op.title).leaves
        return self._promised[key]

    # ------------------------------------------------------- shapes before the run

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        key = tuple([(s.shape, s.dtype) for s in structs])
        if key not in self._shapes:
            self._shapes[key] = self._find_shapes([Struct(s.shape, s.dtype) for s in structs])
        return self._shapes[key]

    def fills(self, arrays: Sequence[Any]) -> list[Any]:
        known = [(fill_shape(leaf, None, "func failed", self.title), leaf) for leaf in self.promised(arrays)]
        return full(self.op.fills, [Struct(shape, leaf.dtype) for shape, leaf in known])

    def note_shapes(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        if not self._shapes:
            self._shapes[tuple((s.shape, s.dtype) for s in structs)] = list(results)

    def _find_shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        op = self.op
        leaves = self.promised(structs)
        if all(leaf.shape_known for leaf in leaves):
            return [Struct(leaf.shape, leaf.dtype) for leaf in leaves]
        inferred, self.shape_source = self._infer(structs)
        if inferred is not None:
            inferred = op.spec.shapes_of_arrays(inferred)
        return [
            Struct(fill_shape(leaf, inferred and inferred[k], self.shape_source, op.title), leaf.dtype)
            for k, leaf in enumerate(leaves)
        ]

    def check_uses(self, arrays: Sequence[Any]) -> None:
        """Raise if the user's function or a rule uses traced values of other code, for the inputs `arrays`."""
        if _jaxcore.is_in_a_program():
            for what, rule in self.op.rules.functions():
                self._check_holds_nothing(what, rule)
        if self.op.stateful or not _jaxcore.may_leave_out():
            return
        structs = element_structs(arrays)
        if not self.op.on_jax:
            self._check_holds_nothing("func", self._held)
        elif all(leaf.shape_known for leaf in self.promised(structs)):
            self._shapes_on_types(structs)
        else:
            # These are found by such a run and remembered. Later there would be a trace that leaves nothing out.
            self.shapes(structs)

    def may_use_traced_values(self, arrays: Sequence[Any]) -> bool:
        """Tell whether the function holds traced values, in a program without derivatives, and may use them.

        JAX may take the derivative of this program later. The values look like any others then.
        """
        if not _jaxcore.is_in_a_program() or _jaxcore.may_leave_out() or traced_value_in(self._held) is None:
            return False
        return not self.op.on_jax or self._shapes_on_types(element_structs(arrays)) is None

    @property
    def _held(self) -> tuple[Any, ...]:
        """What the function may read besides arrays: what it holds itself, and what else is in its inputs."""
        return self.op.func, self.inputs.leaves, nodes_of(self.inputs.tree)

    def _shapes_on_types(self, structs: Sequence[Struct]) -> list[Struct] | None:
        """Run the function on types, and return those of its results, or None if it needs values.

        Raises:
            ValueError: it uses a traced value of other code. If it needs values before, and the program may leave it
                out, this is raised if it holds such a value.
        """

        def run() -> tuple[list[Struct], list[Any]]:
            # The body will run outside of all named axes, too.
            with _jaxcore.without_axes():
                flat = lambda *arrays: match(self.op.spec.returned, self._returned(arrays), self.title)
                return _jaxcore.shapes_of_run(flat, structs)

        found: list[Struct] | None = None
        foreign: list[Any] = []
        with contextlib.suppress(Exception):
            found, foreign = run() if self.op.executor is None else call_where_op_runs(self.op, run)
        if foreign:
            raise hidden_value_error(foreign[0], self.title, "func", is_used=True)
        if found is None and _jaxcore.may_leave_out():
            self._check_holds_nothing("func", self._held)
        return found

    def _check_holds_nothing(self, what: str, holder: Any) -> None:
        if (hidden := traced_value_in(holder)) is not None:
            raise hidden_value_error(hidden, self.title, what, is_used=False)

    def _shapes_on_paths(self, structs: Sequence[Struct]) -> list[Any] | None:
        """Find the shapes by traced mode: it knows both sides of an `if x > 0`, where a run on types has no value."""
        from jaxpyop._traced import shapes_of

        leaves = lambda returned: match(self.op.spec.returned, returned, self.title)
        given = lambda arrays: self.inputs.unflatten(self._as_given(arrays))
        arguments = lambda arrays: (arrays, {}) if self.inputs.tree is None else given(arrays)
        found = shapes_of(self.op.func, arguments, leaves, structs)
        return None if found is None else list(found)

    def _infer(self, structs: Sequence[Struct]) -> tuple[list[Any] | None, str]:
        op = self.op
        if op.on_jax and not op.stateful:
            if (found := self._shapes_on_types(structs)) is not None:
                return [s.shape for s in found], "the shape found by running func on abstract values"
            if _jaxcore.has("traced mode") and (shapes := self._shapes_on_paths(structs)) is not None:
                return shapes, "the shape found by tracing func"
        # Assume the shape that an elementwise function gives. It is checked when the program runs.
        logical = [s.shape if impl is None else s.shape[:-1] for s, impl in zip(structs, self.inputs.key_impls)]
        try:
            # NumPy's function does not take the symbolic sizes of `jax.export`.
            shape = jax.numpy.broadcast_shapes(*logical)
        except ValueError:
            return None, "the inputs' shapes do not broadcast"
        return [shape] * len(op.spec.returned.leaves), "the inputs' broadcast shape"


# ------------------------------------------------------------------- `out=True`
#
# The function fills the op's results instead of returning its own. If a program runs the function in this process, the
# arrays to fill come after the inputs: rows or blocks of XLA's own memory. In a direct call, in another process and for
# a derivative no such arrays come, and they are made here. They are zero at first, and the function may use them during
# the call only.


class FilledBody(UserBody):
    """The user's function, which fills arrays. They are the results, unless they are in XLA's memory already."""

    def for_native(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any], Any, bool] | None:
        if (found := super().for_native(arrays)) is None:
            return None
        args, kwargs, returns, _ = found
        return args, {**kwargs, "out": jax.tree.map(Filled, returns)}, None, False

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return super().shapes(structs[: len(self.inputs.key_impls)])

    def run(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        count = len(self.inputs.key_impls)
        inputs, targets = arrays[:count], arrays[count:]
        for array in targets:
            # Otherwise the function would see the values of another program.
            array.fill(0)
        return self._fill(inputs, targets) if targets else self._call(inputs, self.absent_results(inputs, lead))

    def _fill(self, arrays: Sequence[Any], targets: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
        """Let the function fill memory that is lent to it for the time of the call."""
        lent = lend_results(targets)
        try:
            self._call(arrays, lent)
        except BaseException as error:
            # A debugger would find memory there that is XLA's again.
            forget_locals(error)
            raise
        return_results(lent, targets)
        if kept := kept_of(lent):
            for array in kept:
                array.setflags(write=False)
            warnings.warn(
                f"{self.op.title}: func kept out, which out=True lends for the call only; from now on it is read-only, "
                "its values are undefined, and writing to a slice of it destroys other values: keep a copy",
                RuntimeWarning,
                stacklevel=2,
            )
        return []

    def _call(self, arrays: Sequence[Any], lent: list[Any]) -> list[Any]:
        # A function of its own, so that no variable of `_fill` refers to the lent arrays.
        args, kwargs = self.inputs.unflatten(self._as_given(arrays))
        kwargs = {**kwargs, "out": jax.tree.unflatten(self.op.spec.tree, lent)}
        value = call_with_advice(self.op, "func", self.op.func, args, kwargs)
        found = jax.tree.leaves(value)
        if value is not None and (len(found) != len(lent) or not all(a is b for a, b in zip(found, lent))):
            raise ValueError(
                f"{self.op.title}: func returned {kind_of(value)}, and out=True takes what it writes into out: write "
                "out[...] = value and return nothing, or leave out=True out"
            )
        return lent
