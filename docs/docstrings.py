"""What the reference has to say about every public name, and whether it does.

The public names are found, not listed: whatever has no underscore in `jaxpyop`,
its public submodules, and the attributes of its public objects. The build of
the reference and `tests/test_docs.py` both ask here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator
from typing import Any

SOURCES = re.compile(r"\b(TensorFlow|tf\.\w+|JAX|jax\.\w+)")


def public_names(module: types.ModuleType) -> dict[str, Any]:
    """Every public thing by its dotted name, the module and its submodules first."""
    found: dict[str, Any] = {}
    for each in [module, *submodules(module)]:
        found[each.__name__] = each
        for name, thing in public_attributes(each):
            if not isinstance(thing, types.ModuleType):
                found[f"{each.__name__}.{name}"] = thing
                found |= attributes_of(f"{each.__name__}.{name}", thing, each.__name__.partition(".")[0])
    return found


def submodules(module: types.ModuleType) -> Iterator[types.ModuleType]:
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not info.name.startswith("_"):
            found = importlib.import_module(f"{module.__name__}.{info.name}")
            yield from (found, *submodules(found))


def public_attributes(thing: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(thing, name)) for name in dir(thing) if not name.startswith("_")]


def attributes_of(name: str, thing: Any, package: str) -> dict[str, Any]:
    """The public attributes of a class, or of an object of a class, of ours."""
    kind = thing if isinstance(thing, type) else type(thing)
    if kind.__module__.partition(".")[0] != package:
        return {}
    return {f"{name}.{attribute}": value for attribute, value in public_attributes(thing)}


def problems(name: str, thing: Any, parent_doc: str = "") -> list[str]:
    """What the docstring of a public thing lacks, or has too much of."""
    doc = inspect.cleandoc(own_doc(thing) or "")
    if is_value(thing):
        # A field of a dataclass is an argument of the class, too.
        described = described_in(parent_doc, "Attributes") + described_in(parent_doc, "Args")
        return [] if name.rpartition(".")[2] in described else ["is not among its owner's Attributes"]
    if not doc:
        return ["has no docstring"]
    found = [] if SOURCES.search(doc) else ["names no source in TensorFlow or JAX"]
    if isinstance(thing, types.ModuleType):
        return found
    if not re.search(r"^Example:\n\s+>>> ", doc, re.MULTILINE):
        found.append("has no Example with a doctest")
    if not described_in(doc, "Raises"):
        found.append("has no Raises")
    if inspect.isroutine(thing) and not re.search(r"^Returns:\n +\S", doc, re.MULTILINE):
        found.append("has no Returns")
    if callable(thing):
        found += wrong_arguments(thing, doc)
    else:
        values = [attribute for attribute, value in public_attributes(thing) if is_value(value)]
        found += differences("Attributes", described_in(doc, "Attributes"), values)
    return found


def own_doc(thing: Any) -> str | None:
    """A docstring; an object has that of its class."""
    return thing.__doc__ if callable(thing) or isinstance(thing, types.ModuleType) else type(thing).__doc__


def is_value(thing: Any) -> bool:
    return isinstance(thing, (str, int, float, bytes, tuple, type(None)))


def wrong_arguments(thing: Any, doc: str) -> list[str]:
    parameters = [p for p in inspect.signature(thing).parameters if p != "self"]
    described = described_in(doc, "Args")
    found = differences("Args", described, parameters)
    if not found and described != parameters:
        found.append("has its Args in another order than its parameters")
    return found


def differences(section: str, described: list[str], real: list[str]) -> list[str]:
    missing = [f"has nothing in {section} on {name!r}" for name in real if name not in described]
    return missing + [f"has {name!r} in {section}, which it has not" for name in described if name not in real]


def described_in(doc: str, section: str) -> list[str]:
    """The names that a Google-style section of a docstring describes."""
    found = re.search(rf"^{section}:\n((?: +.*\n|\n)+)", inspect.cleandoc(doc) + "\n", re.MULTILINE)
    return re.findall(r"^    \**([\w.]+):(?: +|\n {5,})\S", found.group(1), re.MULTILINE) if found else []
