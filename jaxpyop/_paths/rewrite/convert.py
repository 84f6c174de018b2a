"""Rewrites a Python function, so that its `if`s and loops become calls of functions of ours.

AutoGraph does the rewriting, from the package `diastatic-malt` (the extra ``loops``): ``while c: ...`` becomes
``ag__.while_stmt(test, body, get_state, set_state, names, ...)``, where `ag__` is the namespace `operators.OPERATORS`.
AutoGraph needs the source text. The new code is compiled with the user's file name and line numbers, so tracebacks and
errors show the user's code.

The functions that the new code calls are rewritten when they are called (`operators.call`), unless they belong to a
library.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from jaxpyop._paths.rewrite.liveness import corrected_analysis
from jaxpyop._paths.rewrite.other_statements import ConversionError, malt, private_names, simplified
from jaxpyop._paths.rewrite.source import check_source
from jaxpyop._paths.snapshot import is_own

INSTALL = "run `python -m pip install diastatic-malt` (the extra loops)"


def is_installed() -> bool:
    return importlib.util.find_spec("malt") is not None


_lock = threading.RLock()
_factories: weakref.WeakKeyDictionary[types.CodeType, dict[str, Any]] = weakref.WeakKeyDictionary()
# A rewritten function has this attribute.
_CONVERTED = "__jaxpyop_converted__"


def mark_converted(function: Any) -> Any:
    """Marks a function as rewritten. Functions that are defined inside a rewritten one are marked, too."""
    setattr(function, _CONVERTED, True)
    return function


def is_converted(function: Any) -> bool:
    return getattr(function, _CONVERTED, False)


def converted(function: types.FunctionType, operators: Any) -> Callable[..., Any]:
    """Returns the rewritten function, with the same closure, defaults and globals.

    Raises:
        ConversionError: the function has no source, or uses syntax that cannot be rewritten.
    """
    if is_converted(function):
        return function
    code = function.__code__
    with _lock:
        known = _factories.setdefault(code, {})
        # The file name is a key, too, because code objects that differ only in their file are equal.
        found = known.get(code.co_filename)
        if found is None:
            found = known[code.co_filename] = _factory_or_reason(function, operators)
    if isinstance(found, str):
        raise ConversionError(found)
    new = found.instantiate(
        function.__globals__, function.__closure__ or (), function.__defaults__, function.__kwdefaults__
    )
    new.__name__, new.__qualname__ = function.__name__, function.__qualname__
    return mark_converted(new)


def _factory_or_reason(function: types.FunctionType, operators: Any) -> Any:
    if not is_installed():
        return INSTALL
    try:
        with corrected_analysis():
            return _transpiler()(operators).factory(function)
    except ConversionError as error:
        return f"{function.__qualname__} cannot be rewritten: {error}"
    except Exception as error:
        # AutoGraph raises many kinds of exceptions, which are told apart here by their texts.
        name = function.__qualname__
        text = (str(error).splitlines() or [""])[0]
        if "multiple definitions" in text:
            return f"{name} shares its line with other functions and cannot be told from them: write it with def"
        if isinstance(error, OSError) or "source" in type(error).__name__.lower():
            return f"the source of {name}, which is needed to follow loops, cannot be found: write it in a file"
        return f"{name} cannot be rewritten ({type(error).__name__}: {text})"


def _transpiler() -> Any:
    converter, api, transpiler = map(malt, ("core.converter", "impl.api", "pyct.transpiler"))
    features = (converter.Feature.EQUALITY_OPERATORS, converter.Feature.ASSERT_STATEMENTS)
    options = converter.ConversionOptions(recursive=True, user_requested=False, optional_features=features)

    class Transpiler(api.PyToPy):
        def __init__(self, operators: Any) -> None:
            super().__init__()
            self.operators = operators
            self.private: dict[str, str] = {}

        def factory(self, function: types.FunctionType) -> Any:
            check_source(function)
            self.private = private_names(function.__code__)
            program = converter.ProgramContext(options=options)
            nodes, context = transpiler.GenericTranspiler.transform_function(self, function, program)
            name = context.info.name
            if isinstance(nodes, ast.Lambda):
                nodes = ast.Assign(targets=[ast.Name(name, ctx=ast.Store())], value=nodes)
            else:
                nodes.name = name
            inner, outer = (context.namer.new_symbol(n, ()) for n in ("inner_factory", "outer_factory"))
            free = function.__code__.co_freevars
            wrapped = transpiler._wrap_into_factory(nodes, name, inner, outer, free, ["ag__"], ())
            factory = transpiler._PythonFnFactory(name, free, {"ag__": self.operators})
            factory._unbound_factory = _compiled(wrapped, function, context.info.future_features)[outer]()
            return factory

        def transform_ast(self, node: Any, ctx: Any) -> Any:
            return super().transform_ast(simplified(node, self.private), ctx)

    return Transpiler


def _compiled(nodes: list[ast.stmt], function: types.FunctionType, future: Any) -> dict[str, Any]:
    code = function.__code__
    # `inspect` finds the source of the function inside all decorators, and AutoGraph counts lines from there.
    shift = code.co_firstlineno - inspect.getsourcelines(function)[1]
    for node in nodes:
        _locate(node, code.co_firstlineno, shift)
    module = ast.Module(body=nodes, type_ignores=[])
    if future:
        imports = [ast.alias(name=name, asname=None) for name in future]
        module.body.insert(0, _at(ast.ImportFrom(module="__future__", names=imports, level=0), code.co_firstlineno))
    ast.fix_missing_locations(module)
    namespace: dict[str, Any] = {"__name__": function.__module__}
    exec(compile(module, code.co_filename, "exec", dont_inherit=True), namespace)
    return namespace


def _locate(node: ast.AST, line: int, shift: int) -> None:
    """Gives a node and all nodes in it the user's lines. A node without a line gets the line of the node around it."""
    anno = malt("pyct.anno")
    origin = anno.getanno(node, anno.Basic.ORIGIN, default=None)
    if origin is not None:
        line = origin.loc.lineno + shift
    _at(node, line)
    for child in ast.iter_child_nodes(node):
        _locate(child, line, shift)


def _at(node: Any, line: int) -> Any:
    if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword, ast.alias, ast.excepthandler)):
        node.lineno = node.end_lineno = line  # pyright: ignore[reportAttributeAccessIssue]
        node.col_offset = node.end_col_offset = 0  # pyright: ignore[reportAttributeAccessIssue]
    return node


def is_convertible(function: Any, home: str) -> bool:
    """Tells whether a function is to be rewritten: it is the user's, and is not rewritten yet.

    A function is the user's if it belongs to the body's package, or to a module that is not installed.
    """
    return is_own(function, home) and not is_converted(function)


def package_of(function: Any) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]
