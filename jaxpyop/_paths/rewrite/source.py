"""Checks that the source text that Python finds for a function is the text that the function was compiled from.

The file may have changed since it was imported, so that another function is at the function's line. So the text is
compiled again, and its code is compared with the code of the function.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types

from jaxpyop._functions import codes_in


def check_source(function: types.FunctionType) -> None:
    """Raises `OSError` if a function has no source text, or if the text is not what the function was compiled from."""
    code = function.__code__
    lines, _ = inspect.findsource(function)
    found = _codes("".join(lines), code.co_filename)
    if not any(_is_same(code, other) for other in found.get((code.co_name, code.co_firstlineno), ())):
        raise OSError(f"line {code.co_firstlineno} is not what was compiled")


@functools.lru_cache(maxsize=4)
def _codes(text: str, filename: str) -> dict[tuple[str, int], list[types.CodeType]]:
    """Returns the code objects of a source text, by their names and first lines.

    The last few texts are cached, because a file has many functions.
    """
    try:
        module = compile(text, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise OSError(f"the text of {filename} cannot be compiled") from error
    found: dict[tuple[str, int], list[types.CodeType]] = {}
    for code in codes_in(module):
        found.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return found


_SAME = (
    "co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars", "co_names",
    "co_varnames", "co_cellvars", "co_code",
)  # fmt: skip


def _is_same(a: types.CodeType, b: types.CodeType) -> bool:
    if any(name.startswith("@py") for name in (*a.co_names, *a.co_varnames, *a.co_cellvars)):
        # pytest has rewritten the asserts of this module, so the code differs, and only the arguments are compared.
        return a.co_varnames[: a.co_argcount] == b.co_varnames[: b.co_argcount]
    # The bits above are flags of imports from __future__, which may differ.
    if a.co_flags & 0xFF != b.co_flags & 0xFF:
        return False
    if any(getattr(a, name) != getattr(b, name) for name in _SAME) or len(a.co_consts) != len(b.co_consts):
        return False
    return all(map(_is_same_constant, a.co_consts, b.co_consts))


def _is_same_constant(a: object, b: object) -> bool:
    if isinstance(a, types.CodeType) and isinstance(b, types.CodeType):
        return _is_same(a, b)
    # `repr` tells 0.0 from -0.0, and 1 from True in a tuple. These are equal.
    return type(a) is type(b) and repr(a) == repr(b)
