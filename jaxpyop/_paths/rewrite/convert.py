"""A Python function rewritten so that its `if`s and loops are calls of ours.

The rewriting is AutoGraph's, as `diastatic-malt` has it (the extra ``loops``): ``while c: ...`` becomes
``ag__.while_stmt(test, body, get_state, set_state, names, ...)``, where `ag__` is what `operators` gives. It needs the
source text. The new code is compiled under the user's file and lines, so tracebacks and errors name what was written.

Called functions are rewritten when they are called (see `calls`), unless they are a library's.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from jaxpyop._paths.follow import is_users

INSTALL = "pip install 'jaxpyop[loops]'"


class ConversionError(Exception):
    """A function cannot be rewritten; the text says why and what to do."""


@functools.cache
def is_installed() -> bool:
    return importlib.util.find_spec("malt") is not None


_lock = threading.RLock()
_factories: weakref.WeakKeyDictionary[types.CodeType, dict[str, Any]] = weakref.WeakKeyDictionary()
_MARK = "__jaxpyop_converted__"


def mark_converted(function: Any) -> Any:
    """Say of a function that it is the result of rewriting (those defined in one are, too)."""
    setattr(function, _MARK, True)
    return function


def is_converted(function: Any) -> bool:
    return getattr(function, _MARK, False)


def converted(function: types.FunctionType, operators: Any) -> Callable[..., Any]:
    """The function rewritten; it shares the closure, the defaults and the globals.

    Raises:
        ConversionError: it has no source, or uses what cannot be rewritten.
    """
    if is_converted(function):
        return function
    code = function.__code__
    with _lock:
        known = _factories.setdefault(code, {})
        found = known.get(code.co_filename)  # codes that differ in their file only are equal
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
        with _short_walks():
            return _transpiler()(operators).factory(function)
    except ConversionError as error:
        return f"{function.__qualname__} cannot be rewritten: {error}"
    except Exception as error:  # whatever AutoGraph stumbles over
        name = function.__qualname__
        text = (str(error).splitlines() or [""])[0]
        if "multiple definitions" in text:
            return f"{name} stands beside others in one line, and cannot be told from them: write it with def"
        if isinstance(error, OSError) or "source" in type(error).__name__.lower():
            return f"the source of {name} is needed to follow loops, and is not to be had: write it in a file"
        return f"{name} cannot be rewritten ({type(error).__name__}: {text})"


@contextlib.contextmanager
def _short_walks() -> Iterator[None]:
    """Have AutoGraph's analysis wait for each statement once.

    Its queue (diastatic-malt 2.15) takes a statement as often as one before it changes, which for `if`s in a row
    doubles at each: forty do not end. The result is the same.
    """
    visitor = _malt("pyct.cfg").GraphVisitor
    original = visitor._visit_internal
    visitor._visit_internal = _walk
    try:
        yield
    finally:
        visitor._visit_internal = original


def _walk(visitor: Any, mode: Any) -> None:
    forward = mode.name == "FORWARD"
    waiting = dict.fromkeys([visitor.graph.entry] if forward else visitor.graph.exit)
    seen: set[Any] = set()
    while waiting:
        node = next(iter(waiting))
        del waiting[node]
        seen.add(node)
        changed = visitor.visit_node(node)
        for following in node.next if forward else node.prev:
            if changed or following not in seen:
                waiting.setdefault(following)


def _malt(name: str) -> Any:
    return importlib.import_module(f"malt.{name}")  # which has no types


@functools.cache
def _transpiler() -> Any:
    converter, api, transpiler = map(_malt, ("core.converter", "impl.api", "pyct.transpiler"))
    features = (converter.Feature.EQUALITY_OPERATORS, converter.Feature.ASSERT_STATEMENTS)
    options = converter.ConversionOptions(recursive=True, user_requested=False, optional_features=features)

    class Transpiler(api.PyToPy):
        def __init__(self, operators: Any) -> None:
            super().__init__()
            self.operators = operators

        def factory(self, function: types.FunctionType) -> Any:
            _check_source(function)
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
            _check_statements(node)
            return super().transform_ast(_WithoutTypes().visit(node), ctx)

    return Transpiler


# These parts become functions of their own, whose names are not those of the function around them.
_PARTS = {"While": ("test",), "BoolOp": ("values",), "IfExp": ("body", "orelse")}


def _check_statements(tree: ast.AST) -> None:
    """Raise about what AutoGraph takes for something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            raise ConversionError("it has a `match`: write `if` and `elif`")
        parts = [getattr(node, name) for name in _PARTS.get(type(node).__name__, ())]
        inner = [x for part in parts for top in (part if isinstance(part, list) else [part]) for x in ast.walk(top)]
        if any(isinstance(x, ast.NamedExpr) for x in inner):
            raise ConversionError("it has a `:=` in a condition: assign before the loop, and at the end of each turn")


class _WithoutTypes(ast.NodeTransformer):
    """`x: float = 1` as `x = 1`: the names of a loop are those of a function around it, which cannot have types."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        new = ast.Assign([node.target], node.value) if node.value else ast.Pass()
        anno = _malt("pyct.anno")
        anno.copyanno(node, new, anno.Basic.ORIGIN)
        return ast.copy_location(new, node)


def _check_source(function: types.FunctionType) -> None:
    """Raise where the text that is found is not what the function was compiled from: the file was changed."""
    lines, first = inspect.findsource(function)
    count = max((line or 0 for *_, line in function.__code__.co_lines()), default=0)
    if count > len(lines):
        raise OSError(f"line {first + 1}")


def _compiled(nodes: list[ast.stmt], function: types.FunctionType, future: Any) -> dict[str, Any]:
    code = function.__code__
    # AutoGraph counts lines from the function that a decorator wraps.
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
    """Give a node and what is in it the user's lines: its own, or those of what it is in."""
    anno = _malt("pyct.anno")
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


_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))


def is_convertible(function: Any, home: str) -> bool:
    """Whether a function is the user's: of the body's own package, or not installed at all."""
    if not isinstance(function, types.FunctionType) or is_converted(function):
        return False
    filename = function.__code__.co_filename
    if not is_users(filename):
        return False
    return package_of(function) == home or not filename.startswith(_INSTALLED)


def package_of(function: Any) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]
