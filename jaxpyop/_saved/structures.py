"""The structures of arguments and results as data: NamedTuples, dataclasses, and what is registered with `jax.export`.

A class is stored as a function is: by a name, which finds it only if the loading process offers it. What a NamedTuple
or dataclass holds is stored field by field, and not as JAX's registry describes it, because a library may describe its
classes in another way in its next version. The modules of Equinox and the states of Flax and Optax are such classes.
Where `jax.export` was told how to write a node of a pytree, it writes it here, too.
"""

from __future__ import annotations

import base64
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from jaxpyop._saved.file_format import from_data, to_data
from jaxpyop._saved.function_names import Names, fields_of
from jaxpyop._values import SLOT, static


@dataclasses.dataclass(frozen=True, slots=True)
class _Numbered:
    """Stands for an array of a structure, so that the file tells the order in which the arrays were flattened."""

    number: int | None
    content: Any


def structure_to_data(
    make: Callable[[list[Any]], Any],
    count: int,
    names: Names,
    title: str,
    leaf: Callable[[int], Any] = lambda number: True,
) -> Any:
    """Turn a structure into JSON.

    Args:
        make: makes the value of what stands for its arrays.
        count: the number of its arrays.
        names: numbers the classes and functions in it.
        title: how an error about one of them begins.
        leaf: the data of a leaf, from its number.

    Raises:
        TypeError: a part cannot be saved, or a loaded one would be different.
        ValueError: another process could not find a class or a function.
    """
    value = make([_Numbered(k, leaf(k)) for k in range(count)])
    numbered = lambda x: [x.number, x.content] if isinstance(x, _Numbered) else None
    data = to_data(value, numbered, lambda node, part: _node_to_data(node, part, names, title))
    if jax.tree.structure(structure_from_data(data, names.objects)) != jax.tree.structure(make([SLOT] * count)):
        raise TypeError(f"{value!r} cannot be made of its fields again")
    return data


def structure_from_data(data: Any, objects: Sequence[Any], leaf: Callable[[Any], Any] = lambda content: SLOT) -> Any:
    """Turn JSON back into the value.

    Args:
        data: what `structure_to_data` returned.
        objects: the functions and classes of the file.
        leaf: makes a leaf from its data.

    Raises:
        ValueError: a class flattens its fields in another order than where the file was saved.
    """
    # The first files have no numbers. They have none of the classes that could flatten in another order either.
    numbered = lambda content: _Numbered(*(content if isinstance(content, list) else (None, content)))
    value = from_data(data, numbered, lambda node, part: _node_from_data(node, part, objects))
    parts, tree = jax.tree.flatten(value)
    numbers = [part.number for part in parts if isinstance(part, _Numbered) and part.number is not None]
    if numbers != sorted(numbers):
        raise ValueError(f"the arrays of {tree} were saved in another order: {numbers}")
    return tree.unflatten([leaf(part.content) if isinstance(part, _Numbered) else part for part in parts])


# ------------------------------------------------------------------ one node


def _node_to_data(node: Any, part: Callable[[Any], Any], names: Names, title: str) -> Any:
    """Return a node or a function as data; None for what is neither. `part` turns what the node holds into data."""
    if isinstance(node, static):
        return {"static": part(node.value)}
    if (written := _written_by_jax(node)) is not None:
        children = jax.tree.leaves(node, is_leaf=lambda x: x is not node)
        return {"jax": base64.b85encode(written).decode(), "parts": list(map(part, children))}
    if (fields := fields_of(type(node))) is not None:
        if not set(getattr(node, "__dict__", ())) <= set(fields):
            raise TypeError(f"{node!r} has attributes that are not fields of its class")
        held = [part(getattr(node, field)) for field in fields]
        return {"class": names.number_of_class(type(node), title), "parts": held}
    if isinstance(node, type) or not callable(node):
        return None
    return {"function": names.number(node, title, "a function")}


def _node_from_data(data: dict[str, Any], part: Callable[[Any], Any], objects: Sequence[Any]) -> Any:
    if "static" in data:
        return static(part(data["static"]))
    if "function" in data:
        return objects[data["function"]]
    parts = list(map(part, data["parts"]))
    if "jax" in data:
        tree = jax.export.deserialize(bytearray(base64.b85decode(data["jax"]))).in_tree
        ((node,), _) = tree.unflatten(parts)
        return node
    kind = objects[data["class"]]
    if issubclass(kind, tuple):
        return tuple.__new__(kind, parts)
    # A pytree is made of its fields, without what `__init__` would compute of them.
    node = object.__new__(kind)
    for field, value in zip(fields_of(kind) or (), parts, strict=True):
        object.__setattr__(node, field, value)
    return node


def _written_by_jax(node: Any) -> bytes | None:
    """Return a program of `jax.export` that has the node as its argument; None if JAX was not told how to write it."""
    children, tree = jax.tree.flatten(node, is_leaf=lambda x: x is not node)
    if jax.tree_util.treedef_is_leaf(tree) or isinstance(node, types.FunctionType):
        return None
    argument = tree.unflatten([jax.ShapeDtypeStruct((), jax.numpy.float32)] * len(children))
    try:
        return bytes(jax.export.export(jax.jit(lambda node: ()))(argument).serialize())
    except ValueError:
        # JAX's registry of these cannot be read, only asked.
        return None
