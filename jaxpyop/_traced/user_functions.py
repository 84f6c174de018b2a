"""Functions of the user: their frames, their arguments, and the names that they read and assign."""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import types
from collections.abc import Callable, Iterator
from typing import Any

from jaxpyop import _jaxcore as core
from jaxpyop._functions import codes_in, contents_of_code, names_in
from jaxpyop._traced.calls import Calls
from jaxpyop._traced.containers import CHANGES
from jaxpyop._traced.machine import NORMAL, RETURN
from jaxpyop._traced.operators import OUTSIDE, RECURSION, name_of_function
from jaxpyop._traced.values import *

_MOST_CALLS = 60
Node = ast.FunctionDef | ast.Lambda


class Functions(Calls):
    """Calls of functions of the user."""

    block: Callable[[list[ast.stmt], Obj], None]
    eval: Callable[[ast.expr, Obj], Any]
    refine: Callable[..., None]

    def frame(self, names: frozenset[str], parent: Any, outer: Any) -> Obj:
        """The variables of a call. Names that begin with $ are the interpreter's."""
        slots = {"$names": names, "$parent": parent, "$outer": outer, "$status": NORMAL, "$ret": UNSEEN}
        return Obj("frame", slots)

    def call_user(self, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not isinstance(f, Closure):
            if f.__code__.co_filename.startswith(core.PACKAGE):
                raise Refused("an op in a traced function is not in the language", "call its function there")
            if not core.is_users_file(f.__code__.co_filename):
                raise Refused(f"`{name_of_function(f)}` is not in the language", OUTSIDE)
            f = Closure(_source_of(f.__code__, f.__qualname__), None, f, f.__defaults__ or (), f.__kwdefaults__ or {})
        if len(self.frames) > _MOST_CALLS:
            raise Refused(RECURSION, "write a loop")
        self.counted()
        node = f.node
        frame = self.frame(local_names(node), f.env, f.outer)
        frame.slots["$later"] = _names_read_later(node)
        frame.slots.update(self._bound_arguments(f, args, kwargs))
        with self.having(frames=[*self.frames, frame], line=(f.outer.__code__.co_filename, node.lineno)):
            if isinstance(node, ast.Lambda):
                value = self.eval(node.body, frame)
                self.returned = self.line, node.body
                return value
            self.block(node.body, frame)
        status, ret = frame.slots["$status"], frame.slots["$ret"]
        return self.branch(self.truth(self.compare(ast.Eq, status, RETURN)), lambda: ret, lambda: None)

    def _bound_arguments(self, f: Closure, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The parameters of a function by name, as Python binds them."""
        bind = types.FunctionType(_binder(f.node), {}, None, tuple(map(self.outside, f.defaults)))
        bind.__kwdefaults__ = {k: self.outside(v) for k, v in f.kw_defaults.items()}
        bind.__qualname__ = getattr(f.node, "name", "<lambda>")
        try:
            bound = bind(*args, **kwargs)
        except TypeError as e:
            raise PyRaise(e) from None
        check_no_iterators(*bound.values())
        if rest := f.node.args.kwarg:
            bound[rest.arg] = self.new_dict(bound[rest.arg].items())
        return bound

    def closure(self, node: Any, env: Obj) -> Closure:
        a = node.args
        defaults = tuple(self.eval(d, env) for d in a.defaults)
        pairs = zip(a.kwonlyargs, a.kw_defaults)
        kw_defaults = {x.arg: self.eval(d, env) for x, d in pairs if d is not None}
        return Closure(node, env, env.slots["$outer"], defaults, kw_defaults)

    # ----------------------------------------------------------------------- names

    def _scopes(self, env: Any) -> Iterator[Obj]:
        """The variables of a call, and those of the functions around it."""
        while env is not None:
            if isinstance(env, Union):
                raise Refused("a variable of a function that was made on one of several paths", "make it before them")
            yield env
            env = env.slots["$parent"]

    def load(self, name: str, env: Obj) -> Any:
        check_name(name)
        for scope in self._scopes(env):
            if name in scope.slots["$names"]:
                v = scope.slots.get(name, UNDEF)
                return self.lifted(lambda a: a, v) if may_be_undefined(v) else v
        return self._from_outside(name, env.slots["$outer"])

    def _from_outside(self, name: str, outer: Any) -> Any:
        free = outer.__code__.co_freevars
        if name in free:
            try:
                return self.outside(outer.__closure__[free.index(name)].cell_contents)
            except ValueError:
                raise PyRaise(NameError(f"`{name}` has no value")) from None
        found = outer.__globals__.get(name, outer.__builtins__.get(name, UNDEF))
        if found is UNDEF:
            raise PyRaise(NameError(f"name {name!r} is not defined"))
        return self.outside(found)

    def store(self, name: str, value: Any, env: Obj) -> None:
        for scope in self._scopes(env):
            if name in scope.slots["$names"]:
                return self.write(scope, name, value)
        raise Refused(f"`{name}` from outside of the function is changed", CHANGES)

    def assign(self, target: Any, value: Any, env: Obj) -> None:
        if isinstance(target, ast.Name):
            self.store(target.id, value, env)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.lifted(lambda v: self._unpack(target.elts, self.iterate(v), env), value)
        elif isinstance(target, ast.Attribute):
            self.set_attr(self.eval(target.value, env), target.attr, value)
        elif isinstance(target, ast.Subscript):
            self.set_item(self.eval(target.value, env), self.eval(target.slice, env), value)
        else:
            raise Refused(f"an assignment to a {type(target).__name__}")

    def _unpack(self, targets: list[ast.expr], values: tuple[Any, ...], env: Obj) -> None:
        star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        if star is not None and len(values) >= len(targets) - 1:
            end = len(values) - (len(targets) - star - 1)
            values = (*values[:star], self.new_list(values[star:end]), *values[end:])
        if len(values) != len(targets):
            raise PyRaise(ValueError(f"{len(values)} values are unpacked into {len(targets)} names"))
        for t, v in zip(targets, values):
            self.assign(t.value if isinstance(t, ast.Starred) else t, v, env)

    def do_functiondef(self, s: ast.FunctionDef, env: Obj) -> None:
        decorators = [self.eval(d, env) for d in s.decorator_list]
        _check_annotations(s)
        f: Any = self.closure(s, env)
        for d in reversed(decorators):
            f = self.call(d, [f], {})
        self.store(s.name, f, env)


# ------------------------------------------------------------------------- their source


def _check_annotations(node: ast.FunctionDef) -> None:
    """Older Pythons evaluate annotations where a function is made. Here they are not, so they must do nothing."""
    annotations = [*(x.annotation for x in ast.walk(node.args) if isinstance(x, ast.arg)), node.returns]
    if any(isinstance(n, (ast.Call, ast.NamedExpr)) for a in annotations if a for n in ast.walk(a)):
        raise Refused("an annotation that calls something", "leave it out")


@functools.lru_cache(maxsize=4096)
def _binder(node: Node) -> types.CodeType:
    """The code of a function with the parameters of another one, which returns them by name."""
    a: ast.arguments = node.args
    none: Any = ast.Constant(None)
    keywords = [d and none for d in a.kw_defaults]
    bare = ast.arguments(a.posonlyargs, a.args, a.vararg, a.kwonlyargs, keywords, a.kwarg, [none for _ in a.defaults])
    names = [x.arg for x in ast.walk(bare) if isinstance(x, ast.arg)]
    values = ast.Dict([ast.Constant(n) for n in names], [ast.Name(n, ast.Load()) for n in names])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(bare, values)))
    return eval(compile(tree, "<parameters>", "eval")).__code__


@functools.lru_cache(maxsize=4096)
def local_names(node: Node) -> frozenset[str]:
    """The names that are local to a function."""
    a = node.args
    arguments = (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))
    names, declared = {each.arg for each in arguments}, set[str]()
    for statement in node.body if isinstance(node.body, list) else [node.body]:
        for n in _own_nodes(statement):
            if isinstance(n, (ast.FunctionDef, ast.ClassDef)):
                names.add(n.name)
            elif isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)):
                raise Refused("a generator or a coroutine is not in the language", "return a list")
            elif isinstance(n, ast.Global):
                raise Refused("`global` is not in the language", "return the value")
            elif isinstance(n, ast.Nonlocal):
                declared.update(n.names)
            elif isinstance(n, ast.Match):
                raise Refused("`match` is not in the language", "write an if")
            elif isinstance(n, ast.ExceptHandler) and n.name:
                names.add(n.name)
            elif isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                names.add(n.id)
            elif isinstance(n, (ast.Import, ast.ImportFrom)):
                raise Refused("an import inside a function is not in the language", "import it at the top of the file")
    return frozenset(names - declared)


@functools.lru_cache(maxsize=4096)
def _names_read_later(node: Node) -> frozenset[str]:
    """The names that may be read after the function has returned: by a `finally`, or by a function that it made."""
    found = set[str]()
    for n in ast.walk(node):
        if isinstance(n, ast.Try):
            later = n.finalbody
        else:
            later = [n] if isinstance(n, (ast.FunctionDef, ast.Lambda)) and n is not node else []
        found.update(x.id for part in later for x in ast.walk(part) if isinstance(x, ast.Name))
    return frozenset(found)


def _own_nodes(n: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are in a function itself, and not in a function or a comprehension in it."""
    if isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        # Of a comprehension, only a walrus assigns to a variable of the function.
        yield from (x.target for x in ast.walk(n) if isinstance(x, ast.NamedExpr))
        return
    yield n
    children = list(ast.iter_child_nodes(n))
    if isinstance(n, (ast.FunctionDef, ast.Lambda)):
        # What is evaluated where it is made.
        children = [*n.args.defaults, *filter(None, n.args.kw_defaults), *getattr(n, "decorator_list", ())]
    for child in () if isinstance(n, ast.ClassDef) else children:
        yield from _own_nodes(child)


@functools.lru_cache(maxsize=4096)
def _source_of(code: types.CodeType, name: str) -> Node:
    """The syntax tree of a function, found by its code, because `inspect` would follow `__wrapped__`."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    advice = "define it in a file or a notebook cell, one a line"
    if not text.strip() or not (codes := _codes_of(text, code.co_flags & __future__.annotations.compiler_flag)):
        what = "cannot be found"
    # In a test file, pytest has compiled another text of each function with an `assert`.
    elif _identity(code) not in codes and "@pytest_ar" not in names_in(code):
        what, advice = "has changed since it was imported", "import it again, or start Python again"
    elif len(found := [n for n in _functions_in(text).get(code.co_firstlineno, []) if _may_be(n, code)]) != 1:
        what = "cannot be told from that of another one in its line"
    else:
        return found[0]
    raise Refused(f"the source of {name} {what}", advice, (code.co_filename, code.co_firstlineno))


@functools.lru_cache(maxsize=64)
def _functions_in(text: str) -> dict[int, list[Node]]:
    """The functions of a file by their first lines. That of a function with decorators is the line of the first one."""
    functions: dict[int, list[Node]] = {}
    for n in ast.walk(ast.parse(text)):
        if isinstance(n, (ast.FunctionDef, ast.Lambda)):
            decorators: list[ast.expr] = getattr(n, "decorator_list", [])
            functions.setdefault(min(x.lineno for x in (n, *decorators)), []).append(n)
    return functions


@functools.lru_cache(maxsize=64)
def _codes_of(text: str, flags: int) -> list[Any]:
    """What identifies each function of a file, as Python compiles it today: it may have changed since its import."""
    try:
        return list(map(_identity, codes_in(compile(text, "", "exec", flags, dont_inherit=True))))
    except (SyntaxError, ValueError):
        return []


def _identity(code: types.CodeType) -> Any:
    return code.co_name, code.co_firstlineno, list(code.co_positions()), contents_of_code(code)


def _may_be(node: Node, code: types.CodeType) -> bool:
    """Whether a function that begins in the right line is that of this code. Lambdas are told by their columns."""
    if isinstance(node, ast.FunctionDef):
        return node.name == code.co_name
    starts = [(line, column) for line, _, column, end in code.co_positions() if line and end]
    return code.co_name == "<lambda>" and (not starts or min(starts) == (node.body.lineno, node.body.col_offset))


@functools.lru_cache(maxsize=4096)
def contains(kind: type[ast.stmt], loop: ast.While | ast.For) -> bool:
    return any(isinstance(n, kind) for s in loop.body for n in ast.walk(s))
