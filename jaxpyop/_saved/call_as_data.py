"""One Python call as data: the op that the user asked for, or the step that derived the call from another call.

A call that belongs to a derivative has no description of its own. It was derived from the user's call by a chain of
steps, such as "linear" and then "transposed". The file stores the chain, and loading repeats it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._op import Call, Op, Rules, UserCall, derived, make_op, numerical
from jaxpyop._saved.file_format import (
    dtype_named,
    from_data,
    implementation,
    key_dtype,
    to_data,
)
from jaxpyop._saved.function_names import Names
from jaxpyop._saved.structures import structure_from_data, structure_to_data
from jaxpyop._values import SLOT, KeyEncoding, Leaf, Padding, Struct, inputs_of, padded, static

_Functions = Sequence[Callable[..., Any]]
# Fields of an op that follow from others, or that mean nothing for an op that is called.
_NOT_SAVED = {"title", "mode", "reason_to_call"}
# Flags and texts are saved as they are. Any other option needs code of its own below.
_TYPES = {"bool": bool, "str": str}
_FIELDS = [field for field in dataclasses.fields(Op) if field.type in _TYPES and field.name not in _NOT_SAVED]
_OPTIONS = {*(field.name for field in _FIELDS), "vmap_method"}
_RULES = tuple(field.name for field in dataclasses.fields(Rules))


class CallsToData:
    """Numbers the calls of a program that is being saved. A call comes after the call that it was derived from."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._numbers: dict[Call, int] = {}
        self.data: list[dict[str, Any]] = []

    def number(self, call: Call) -> int:
        """Return the number of a call.

        Raises:
            ValueError: the call cannot be saved. The error names the op and the reason.
        """
        if call not in self._numbers:
            found = self._described(call)
            self._numbers[call] = len(self.data)
            self.data.append(found)
        return self._numbers[call]

    def _described(self, call: Call) -> dict[str, Any]:
        if call.origin is not None:
            parent, step, argument = call.origin
            return {"of": self.number(parent), "step": step, "argument": list(map(bool, argument))}
        if type(call) is not UserCall:
            raise ValueError(f"{call.title}: jaxpyop.export does not know how this call was made")
        try:
            inputs = call.body.inputs
            # What is no array stays whole: as a part of the structure, a dict would be sorted.
            leaves = tuple([leaf if leaf is SLOT else static(leaf) for leaf in inputs.leaves])
            whole = dataclasses.replace(inputs, leaves=leaves)
            skeleton = structure_to_data(whole.unflatten, len(inputs.key_impls), self._names, call.title)
        except TypeError as error:
            raise ValueError(
                f"{call.title}: an input that is no array, {error}; jaxpyop.export saves only such data: pass it "
                "as an array, or let func make it"
            ) from None
        keys = [impl if impl is None else implementation(impl) for impl in inputs.key_impls]
        has_flag = call.operands.has_flag
        return {"op": _op_to_data(call.op, self._names), "inputs": skeleton, "keys": keys, "conditional": has_flag}


def _op_to_data(op: Op, names: Names) -> dict[str, Any]:
    if op.executor is not None:
        raise ValueError(
            f"{op.title}: jaxpyop.export cannot save executor=, which belongs to its process; leave it out"
        )

    def named(what: str, rule: Any) -> Any:
        if isinstance(rule, numerical):
            return {"step": to_data(rule.step)}
        return rule if rule is None else names.number(rule, op.title, what)

    try:
        leaves, tree = jax.tree.flatten(op.spec.returned.skeleton)
        results = structure_to_data(
            tree.unflatten, len(leaves), names, op.title, lambda number: _leaf_to_data(leaves[number])
        )
    except TypeError as error:
        raise ValueError(f"{op.title}: Tout has {error}; jaxpyop.export saves only such structures") from None
    fills = None
    if op.failures is not None:
        # A padded result has two arrays, its values and its lengths. Only the values have a fill.
        first = np.cumsum([0, *(leaf.arrays for leaf in op.spec.returned.leaves)])[:-1]
        fills = [to_data(np.asarray(op.fills[k]).item()) for k in first]
    rules = {name: named("fwd of vjp=" if name == "fwd" else f"{name}=", getattr(op.rules, name)) for name in _RULES}
    options: dict[str, Any] = {field.name: _TYPES[str(field.type)](getattr(op, field.name)) for field in _FIELDS}
    options["vmap_method"] = op.vmap_method.name
    return {
        "func": names.number(op.func, op.title, "func"),
        "output_shapes": named("output_shapes=", op.output_shapes),
        "results": results,
        "fills": fills,
        "rules": {name: rule for name, rule in rules.items() if rule is not None},
        "options": options,
    }


def _leaf_to_data(value: Leaf) -> dict[str, Any]:
    shape = None if value.shape is None else list(value.shape)
    found: dict[str, Any] = {"dtype": value.dtype.name, "shape": shape, "padded": None, "key": None}
    encoding = value.encoding
    if isinstance(encoding, Padding):
        fill = to_data(encoding.fill.item())
        found["padded"] = [list(encoding.most), fill, list(encoding.axes), encoding.several]
    if isinstance(encoding, KeyEncoding):
        found["key"] = [implementation(encoding.impl), None if encoding.shape is None else list(encoding.shape)]
    return found


# -------------------------------------------------------------------- loading


def calls_from_data(data: Sequence[dict[str, Any]], functions: _Functions) -> list[Call]:
    """Make all calls of a file, in the order of their numbers."""
    made: list[Call] = []
    for entry in data:
        if "op" in entry:
            made.append(_user_call(entry, functions))
            continue
        # The call was derived from an earlier call of the list.
        made.append(derived(made[entry["of"]], entry["step"], tuple(entry["argument"])))
    return made


def _user_call(entry: dict[str, Any], functions: _Functions) -> Call:
    skeleton = structure_from_data(entry["inputs"], functions)
    keys = [key if key is None else implementation(key) for key in entry["keys"]]
    op = _op_from_data(entry["op"], functions)
    return UserCall(op, inputs_of(skeleton, keys), has_flag=bool(entry["conditional"]))


def _op_from_data(data: dict[str, Any], functions: _Functions) -> Op:
    def function(number: Any) -> Any:
        if isinstance(number, dict):
            return numerical(from_data(number["step"]))
        return number if number is None else functions[number]

    # JAX's pytrees do not look into a namespace, so each one is a leaf of the results.
    results = structure_from_data(data["results"], functions, lambda leaf: types.SimpleNamespace(**leaf))
    tout = jax.tree.map(_tout, results)
    # Tout cannot hold a shape with an unknown size, so such shapes are passed as output_shapes=.
    partial = jax.tree.map(lambda leaf: (leaf.shape and None in leaf.shape and tuple(leaf.shape)) or None, results)
    asked = function(data["output_shapes"])
    options, rules = dict(data["options"]), {name: function(rule) for name, rule in data["rules"].items()}
    if unknown := (set(options) - _OPTIONS) | (set(rules) - set(_RULES)):
        raise ValueError(f"an op has options that this version of jaxpyop does not know: {', '.join(sorted(unknown))}")
    if "fwd" in rules:
        rules["vjp"] = rules.pop("fwd"), rules["vjp"]
    fills, on_error = data["fills"], "raise"
    if fills is not None:
        values = [from_data(fill) for fill in fills]
        on_error = jax.tree.unflatten(jax.tree.structure(results), values)
    func, mode = functions[data["func"]], "eager" if options["on_jax"] else None
    shapes = partial if asked is None else asked
    options |= rules | {"executor": None, "on_error": on_error}
    return make_op(func=func, tout=tout, mode=mode, output_shapes=shapes, **options)


def _tout(leaf: Any) -> Any:
    if leaf.padded is not None:
        most, fill, axes, several = leaf.padded
        axis = tuple(axes) if several else axes[0]
        return padded(leaf.dtype, most, fill_value=from_data(fill), axis=axis)
    if leaf.key is not None:
        name, shape = leaf.key
        dtype = key_dtype(implementation(name))
        return dtype if shape is None else Struct(tuple(shape), dtype)
    if leaf.shape is None or None in leaf.shape:
        return leaf.dtype
    return Struct(tuple(leaf.shape), dtype_named(leaf.dtype))
