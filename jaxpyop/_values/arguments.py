"""The arguments of a call in the order of the function's signature, which is how derivative rules are given them.

`Arguments` puts arrays into the arguments, and takes apart what a rule returns for them. `spread` takes any value apart
that has the structure of another one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpyop._jaxcore import is_live
from jaxpyop._refusal import refusal
from jaxpyop._values.inputs import SLOT, Inputs
from jaxpyop._values.spec import kind_of, paired


@dataclasses.dataclass(frozen=True, slots=True)
class _Array:
    """Stands for an array of the inputs, by its number."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Fixed:
    """Holds a part of the arguments that is no array, or a default that was not passed."""

    value: Any
    is_default: bool = False


class Arguments:
    """The arguments of a function's call, in the order of its signature, with defaults filled in.

    The arguments of ``*args`` are entries of their own, keyword-only arguments follow in the order of the signature,
    and those of ``**kwargs``, if there are any, are one dict.

    Args:
        func: the function.
        inputs: the structure of its inputs.
        title: the op, for errors.
        without: a keyword that the op itself passes, if it does.

    Raises:
        TypeError: keywords were passed, and the signature does not tell where they belong.
    """

    def __init__(self, func: Callable[..., Any], inputs: Inputs, title: str, without: str = "") -> None:
        numbers = iter(range(len(inputs.key_impls)))
        leaves = [_Array(next(numbers)) if leaf is SLOT else _Fixed(leaf) for leaf in inputs.leaves]
        args, kwargs = (leaves, {}) if inputs.tree is None else jax.tree.unflatten(inputs.tree, leaves)
        arguments = _in_order(func, args, kwargs, title, without)
        self.names = list(arguments)
        self._arguments = tuple(arguments.values())
        self._leaves, self._tree = jax.tree.flatten(self._arguments)

    def filled(self, arrays: Sequence[Any], fixed: Callable[[Any], Any] = lambda value: value) -> tuple[Any, ...]:
        """The arguments with these arrays, as the function gets them. `fixed` may wrap what is no array."""
        return self._unflatten([arrays[a.number] if type(a) is _Array else fixed(a.value) for a in self._leaves])

    def filled_with_tangents(self, tangents: Sequence[Any]) -> tuple[Any, ...]:
        """The structure of the arguments, with the tangents in the places of their arrays, and None elsewhere."""
        return self._unflatten([tangents[a.number] if type(a) is _Array else _none_like(a.value) for a in self._leaves])

    def _unflatten(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(jax.tree.unflatten(self._tree, leaves))

    def take_apart(self, found: Any, inexact: Sequence[bool], said: str) -> list[tuple[str, Any]]:
        """Take apart what a rule returned, which is one entry for each argument.

        The entries of arguments without a derivative may be missing at the end, or be left out altogether.

        Args:
            found: what the rule returned.
            inexact: for each array, whether it can have a derivative.
            said: the beginning of an error, such as "numpy_function 'f': vjp returned".

        Returns:
            For each array its name, and the part of an entry that belongs to it, or None for zero.

        Raises:
            ValueError: the entries do not have the structure of the arguments, or something without a derivative has
                an entry.
        """
        has_derivative = [
            any(type(leaf) is _Array and inexact[leaf.number] for leaf in jax.tree.leaves(argument))
            for argument in self._arguments
        ]
        entries = _entries(found, has_derivative)
        if entries is None:
            raise ValueError(
                f"{said} {kind_of(found)}, and has to return one entry for each argument of func, which are "
                f"{' and '.join(self.names)} (None for zero, or for what has no derivative)"
            )
        values = [("", None)] * len(inexact)
        for name, argument, entry in zip(self.names, self._arguments, entries):
            parts = list(spread(argument, entry, name, said)) or [(name, _Fixed(None), entry)]
            for place, leaf, value in parts:
                if type(leaf) is _Array and inexact[leaf.number]:
                    values[leaf.number] = place, value
                elif not (type(leaf) is _Fixed and leaf.is_default):
                    _check_is_nothing(value, place, said)
        return values

    def each(self, given: Sequence[Any], said: str, *, fills: Callable[[Any], bool]) -> dict[int, Any]:
        """Return the part that belongs to each array, by its number. `given` has an entry for each argument."""
        found: dict[int, Any] = {}
        for name, argument, entry in zip(self.names, self._arguments, given, strict=True):
            parts = spread(argument, entry, name, said, fills=fills)
            found |= {leaf.number: value for _, leaf, value in parts if type(leaf) is _Array}
        return found


def _none_like(value: Any) -> Any:
    """A value with None in the place of each leaf."""
    is_dict = lambda part: type(part) is dict
    if is_dict(value):
        # JAX would sort it, and cannot if the keys are numbers and texts.
        return {key: _none_like(held) for key, held in value.items()}
    return jax.tree.map(lambda part: _none_like(part) if is_dict(part) else None, value, is_leaf=is_dict)


def _entries(found: Any, has_derivative: Sequence[bool]) -> Sequence[Any] | None:
    """One entry for each argument, of what a rule returned; None if their number is wrong."""
    # A rule of one argument may return its entry alone.
    entries = list(found) if type(found) in (list, tuple) else [found]
    left_out = len(has_derivative) - len(entries)
    if left_out >= 0 and not any(has_derivative[len(entries) :]):
        return entries + [None] * left_out
    if len(entries) != sum(has_derivative) or any(entry is None for entry in entries):
        return None
    given = iter(entries)
    return [next(given) if has else None for has in has_derivative]


def _check_is_nothing(value: Any, place: str, said: str) -> None:
    """Raise unless a value is None or zero. Otherwise it may be meant for another argument."""
    for part in jax.tree.leaves(value):
        is_float0 = getattr(part, "dtype", None) == jax.dtypes.float0
        is_number = isinstance(part, (int, float, complex, np.ndarray, np.generic, jax.Array)) and not is_live(part)
        if not is_float0 and not (is_number and not np.any(part)):
            raise ValueError(f"{said} {kind_of(part)}, for {place}, which has no derivative; return None for it")


def _in_order(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], title: str, without: str
) -> dict[str, Any]:
    """The arguments by their names, in the order of the signature."""
    try:
        if isinstance(func, np.ufunc) and not kwargs:
            # Only newer versions of NumPy give ufuncs a signature, whose many options are no concern of a rule.
            raise TypeError
        signature = inspect.signature(func)
        parameters = [p for p in signature.parameters.values() if p.name != without]
        given = signature.replace(parameters=parameters).bind(*args, **kwargs).arguments
    except (TypeError, ValueError) as error:
        if kwargs:
            text = (
                f"{title}: a derivative rule gets the arguments in the order of func's signature, which does not tell "
                f"where the keyword {next(iter(kwargs))!r} belongs ({error}); pass it by position"
            )
            raise refusal(TypeError(text)) from None
        return {f"argument {k}": value for k, value in enumerate(args)}
    found: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            found |= {f"{name}[{k}]": value for k, value in enumerate(given.get(name, ()))}
        elif parameter.kind is parameter.VAR_KEYWORD:
            found |= {name: given[name]} if name in given else {}
        else:
            found[name] = given[name] if name in given else _Fixed(parameter.default, is_default=True)
    return found


def _is_none(value: Any) -> bool:
    return value is None


def spread(
    tree: Any, value: Any, name: str, said: str, *, of: str = "argument", fills: Callable[[Any], bool] = _is_none
) -> Iterator[tuple[str, Any, Any]]:
    """Yield for each leaf of a tree its name, the leaf, and the part of a value that belongs to it.

    Args:
        tree: the tree.
        value: a value of the same structure.
        name: the name of the whole, to which the name of a part is added as Python would write it.
        said: the beginning of an error.
        of: what the whole is, for an error.
        fills: tells which values stand for all leaves of the part of the tree where they are.

    Raises:
        ValueError: the value has another structure.
    """
    leaves = jax.tree.leaves(tree)
    if fills(value) or jax.tree_util.all_leaves([tree]):
        yield from ((name, leaf, value) for leaf in leaves)
    elif leaves:
        if type(tree) in (list, tuple) and len(tree) == 1 and not isinstance(value, (list, tuple)):
            # As in TensorFlow, x stands for [x].
            value = [value]
        if (parts := paired(tree, value)) is None:
            raise ValueError(f"{said}, for {name}, {kind_of(value)} where the {of} is {kind_of(tree)}")
        paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
        for (path, _), (_, part, inner) in zip(paths, parts):
            yield from spread(part, inner, name + jax.tree_util.keystr(path), said, of=of, fills=fills)
