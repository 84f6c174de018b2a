"""Expressions, and the way in: `interpret` makes a program of a function.

To add an expression, write a method `eval_<name of the ast class in lower case>`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _jaxcore as core
from jaxpyop._functions import without_partials
from jaxpyop._traced.operators import RECURSION, name_of_type, type_of
from jaxpyop._traced.statements import Statements
from jaxpyop._traced.values import *


@functools.lru_cache(maxsize=4096)
def _names_of(*targets: ast.expr) -> frozenset[str]:
    return frozenset(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def _is_super(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and ast.unparse(e) == "super()"


# Functions that use up an iterator at once.
_USE_UP = (sum, min, max, sorted, list, tuple)


class Interpreter(Statements):
    """Evaluates expressions in a frame. It is the machine with all parts of the language."""

    def eval(self, e: ast.expr, env: Obj) -> Any:
        method = getattr(self, f"eval_{type(e).__name__.lower()}", None)
        if method is None:
            raise Refused(f"the expression `{ast.unparse(e)}` is not in the language")
        outer, self.node = self.node, e
        try:
            return method(e, env)
        except Refused as error:
            # An error names the innermost expression, of the user's innermost line.
            if not error.expression and error.where is None:
                error.expression = ast.unparse(e)
            raise
        finally:
            self.node = outer

    def eval_constant(self, e: ast.Constant, env: Obj) -> Any:
        return e.value

    def eval_name(self, e: ast.Name, env: Obj) -> Any:
        return self.load(e.id, env)

    def eval_binop(self, e: ast.BinOp, env: Obj) -> Any:
        return self.binary(type(e.op), self.eval(e.left, env), self.eval(e.right, env))

    def eval_unaryop(self, e: ast.UnaryOp, env: Obj) -> Any:
        return self.unary(type(e.op), self.eval(e.operand, env))

    def eval_boolop(self, e: ast.BoolOp, env: Obj) -> Any:
        is_and = isinstance(e.op, ast.And)

        def at(i: int) -> Any:
            before = dict(env.slots)
            v = self.eval(e.values[i], env)
            if i == len(e.values) - 1:
                return v
            t = self.truth(v)

            def more() -> Any:
                self.refine(e.values[i], is_and, env, before)
                return at(i + 1)

            return self.branch(t, *((more, lambda: v) if is_and else (lambda: v, more)))

        return at(0)

    def eval_compare(self, e: ast.Compare, env: Obj) -> Any:
        def at(i: int, left: Any) -> Any:
            right = self.eval(e.comparators[i], env)
            out = self.compare(type(e.ops[i]), left, right)
            if i == len(e.ops) - 1:
                return out
            return self.branch(self.truth(out), lambda: at(i + 1, right), lambda: out)

        return at(0, self.eval(e.left, env))

    def eval_ifexp(self, e: ast.IfExp, env: Obj) -> Any:
        return self.choose(e.test, env, lambda: self.eval(e.body, env), lambda: self.eval(e.orelse, env))

    def eval_namedexpr(self, e: ast.NamedExpr, env: Obj) -> Any:
        v = self.eval(e.value, env)
        self.store(e.target.id, v, env)
        return v

    def eval_tuple(self, e: ast.Tuple, env: Obj) -> Any:
        return tuple(self._elements(e.elts, env))

    def eval_list(self, e: ast.List, env: Obj) -> Any:
        return self.new_list(self._elements(e.elts, env))

    def _elements(self, elements: list[ast.expr], env: Obj, kept: bool = True) -> list[Any]:
        out: list[Any] = []
        for x in elements:
            v = self.eval(x.value if isinstance(x, ast.Starred) else x, env)
            if isinstance(x, ast.Starred):
                out.extend(self.iterate(v))
            elif kept and isinstance(v, Iter):
                raise Refused("an iterator is kept, and not used up at once", "write list(...)")
            else:
                out.append(v)
        return out

    def eval_set(self, e: ast.Set, env: Obj) -> Any:
        elements = self._elements(e.elts, env)
        self.need_constant(*elements)
        return self.python(set, elements)

    def eval_dict(self, e: ast.Dict, env: Obj) -> Any:
        out = self.new_dict()
        for k, v in zip(e.keys, e.values):
            key = None if k is None else self.eval(k, env)
            value = self.eval(v, env)
            for a, b in self.pairs(value) if k is None else ((key, value),):
                self.set_item(out, a, b)
        return out

    def eval_attribute(self, e: ast.Attribute, env: Obj) -> Any:
        return self._of_super(e.attr, env) if _is_super(e.value) else self.get_attr(self.eval(e.value, env), e.attr)

    def eval_subscript(self, e: ast.Subscript, env: Obj) -> Any:
        return self.get_item(self.eval(e.value, env), self.eval(e.slice, env))

    def eval_slice(self, e: ast.Slice, env: Obj) -> Any:
        return self.new_slice(*(None if x is None else self.eval(x, env) for x in (e.lower, e.upper, e.step)))

    def eval_lambda(self, e: ast.Lambda, env: Obj) -> Any:
        return self.closure(e, env)

    def eval_joinedstr(self, e: ast.JoinedStr, env: Obj) -> Any:
        return "".join(self._text(v, env) for v in e.values)

    def _text(self, v: ast.expr, env: Obj) -> str:
        if not isinstance(v, ast.FormattedValue):
            return self.eval(v, env)
        x = self.eval(v.value, env)
        if isinstance(x, Kind) or is_array(x):
            if not self.tells_names:
                raise Refused("an f-string of a value that is not known", "write it in the raise or the assert itself")
            return f"{{{ast.unparse(v.value)}}}"
        spec = self.eval(v.format_spec, env) if v.format_spec else ""
        self.need_constant(x)
        return self.python(format, {115: str, 114: repr, 97: ascii}.get(v.conversion, lambda a: a)(x), spec)

    def eval_call(self, e: ast.Call, env: Obj) -> Any:
        if not isinstance(e.func, ast.Attribute) or _is_super(e.func.value):
            return self._call(self.eval(e.func, env), e, env)
        # A method of one of several objects is looked up and called for each of them.
        name, box = e.func.attr, self.eval(e.func.value, env)
        return self.lifted(lambda v: self._call(self.get_attr(v, name), e, env), box)

    def _of_super(self, name: str, env: Obj) -> Any:
        """`super().name` in a method."""
        frame, outer = self.frames[-1], env.slots["$outer"]
        if env is not frame or frame.slots["$parent"] is not None or "__class__" not in outer.__code__.co_freevars:
            raise Refused("super() in what is no method")
        own, v = self.load("__class__", env), self.load(outer.__code__.co_varnames[0], env)
        mro = type_of(v).__mro__ if isinstance(v, Obj) and own in type_of(v).__mro__ else (own,)
        c = next((c for c in mro[mro.index(own) + 1 :] if name in vars(c)), object)
        if c is object and name == "__init__":
            return Foreign(type(None))
        return self.bind_attribute(vars(c).get(name, UNDEF), v, type_of(v))

    def _call(self, f: Any, e: ast.Call, env: Obj) -> Any:
        others = [*e.args[1:], *(k.value for k in e.keywords)]
        uses_up = any(f is g for g in _USE_UP) and all(isinstance(x, ast.Constant) for x in others)
        at_once = [x for x in e.args[:1] if isinstance(x, ast.GeneratorExp) and uses_up]
        # That its values are computed at once cannot be seen, because it changes nothing, and nothing comes between.
        with self.unchanged("a generator expression"):
            first = [self.comprehension(x, env) for x in at_once]
        args, kwargs = [*first, *self._elements(e.args[len(first) :], env, kept=False)], dict[str, Any]()
        for k in e.keywords:
            value = self.eval(k.value, env)
            for name, v in self.pairs(value) if k.arg is None else ((k.arg, value),):
                if name in kwargs:
                    raise PyRaise(TypeError(f"got multiple values for keyword argument {name!r}"))
                kwargs[name] = v
        return self.call(f, args, kwargs)

    def comprehension(self, e: Any, env: Obj) -> Any:
        scope = self.frame(_names_of(*(g.target for g in e.generators)), env, env.slots["$outer"])
        out = self.new_dict() if isinstance(e, ast.DictComp) else self.new_list(())

        def at(i: int, ifs: list[ast.expr]) -> None:
            if ifs:
                return self.branch(self.truth(self.eval(ifs[0], scope)), lambda: at(i, ifs[1:]), lambda: None)
            if i == len(e.generators):
                if isinstance(e, ast.DictComp):
                    self.set_item(out, self.eval(e.key, scope), self.eval(e.value, scope))
                else:
                    self.list_method(out, "append", [self.eval(e.elt, scope)])
                return None
            g = e.generators[i]
            it = self.eval(g.iter, scope if i else env)

            def run(items: Any) -> None:
                for item in self.lazily(items):
                    self.assign(g.target, item, scope)
                    at(i + 1, g.ifs)

            return self.lifted(run, self.known_length(it))

        at(0, [])
        return out

    eval_listcomp = eval_dictcomp = comprehension

    def eval_generatorexp(self, e: ast.GeneratorExp, env: Obj) -> Any:
        first = e.generators[0]
        if len(e.generators) > 1 or first.ifs:
            raise Refused("a generator expression with a condition is not used up at once", "write a list [...]")
        return Iter(self._each(e.elt, first.target, self.eval(first.iter, env), env))

    def _each(self, elt: ast.expr, target: ast.expr, items: Any, env: Obj) -> Iterator[Any]:
        scope = self.frame(_names_of(target), env, env.slots["$outer"])
        for item in self.lazily(items):
            self.assign(target, item, scope)
            yield self.eval(elt, scope)

    # --------------------------------------------------- what a test says about a variable

    def refine(self, test: ast.expr, truth: bool, env: Obj, before: dict[str, Any]) -> None:
        """Notes that a test had this result: `x is None` says which of its kinds a variable is of.

        A variable that changed since `before` the test is left alone, because a call in the test may have changed it.
        """
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == truth:
            for v in test.values:
                self.refine(v, truth, env, before)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
            left, right = test.left, test.comparators[0]
            if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and left.id in env.slots["$names"]:
                v, same = env.slots.get(left.id), isinstance(test.ops[0], ast.Is) == truth
                if isinstance(v, Union) and before.get(left.id) is v:
                    self._narrow(left.id, v, [i for i, a in enumerate(v.alts) if (a is right.value) == same], env)

    def _narrow(self, name: str, v: Union, keep: list[int], env: Obj) -> None:
        if len(keep) == 1:
            self.write(env, name, v.alts[keep[0]])
        elif keep and len(keep) < len(v.alts):
            table = np.array([keep.index(i) if i in keep else 0 for i in range(len(v.alts))], np.int32)
            self.write(env, name, Union(jnp.asarray(table)[v.tag], [v.alts[i] for i in keep]))


# ------------------------------------------------------------------------------ the way in


def interpret(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    finish: Callable[[Any], Sequence[Any]],
    *,
    max_steps: int | None = None,
    title: str = "",
    auto: bool = False,
    machine: Interpreter | None = None,
) -> tuple[list[Any], Any, list[Exception]]:
    """Interprets a function.

    Args:
        function: the user's.
        args: its arguments: trees of JAX values and of constants.
        kwargs: the same, by name.
        finish: makes the results, a flat list of arrays, of what the function returns.
        max_steps: how many turns of each loop a backward pass may keep.
        title: how errors name the function.
        auto: whether the function is called instead if the program might fail where Python does not.
        machine: what interprets it, if not an `Interpreter`.

    Returns:
        The results, the traced number of the error that Python raises, and the errors. If there are none, the number is
        0. It is, too, if Python raises none of them.

    Raises:
        Refused: the function is not in the language.
    """
    machine = machine or Interpreter(max_steps, title)
    machine.auto = auto
    machine.line = line_of(function)
    machine.returned = machine.line, machine.node
    noted = noting.set(machine.check)
    try:
        given = [list(map(machine.given, args)), {k: machine.given(v) for k, v in kwargs.items()}]
        result = machine.call(machine.outside(function), *given)
        machine.line, machine.node = machine.returned
        outs = _finished(machine, finish, result)
        number = machine.raised.slots["number"]
        if machine.errors:
            number = wide(jax.lax.convert_element_type, raw(number), np.int32)
        return list(outs), number, [error for _, error in machine.errors.values()]
    except Refused as e:
        error = e.error if isinstance(e, PyRaise) and not e.on_a_path else None
        if error and ((title and str(error).startswith(title)) or isinstance(error, NotImplementedError)):
            raise error from None
        e.where = e.where or machine.line
        raise
    except RecursionError:
        raise Refused(RECURSION, "write a loop", line_of(function)) from None
    except Exception as e:
        if (title and str(e).startswith(title)) or isinstance(e, NotImplementedError):
            raise
        # An error of a library, or of ours, about what no row of the language foresees.
        raise Refused(first_line(e), where=machine.line) from e
    finally:
        noting.reset(noted)


@dataclasses.dataclass(frozen=True)
class Either:
    """A number or an array of one of several types. `map` calls a function of each, in a branch of its own."""

    map: Callable[[Callable[[Any], Any]], Any]


def _finished(m: Interpreter, finish: Callable[[Any], Sequence[Any]], v: Any) -> Any:
    """`finish` of what the function returns, with lists and dicts of Python, in a branch for each structure of it.

    A number whose value is traced stays a `Num`.
    """

    def on_a_path(f: Callable[[Any], Any], x: Any) -> Any:
        try:
            return f(m.mapped(result, x))
        except (TypeError, ValueError, OverflowError) as e:
            raise Refused(f"on one path, {str(e).removeprefix(m.label + ': ')}") from e

    def of_one_type(out: Any) -> Any:
        if any_part(lambda part: isinstance(part, Union), out):
            raise Refused("a result has one shape on one path, and another on another", "return one shape")
        return out

    def result(x: Any) -> Any:
        if isinstance(x, Union):
            return Either(lambda f: of_one_type(m.lifted(lambda a: on_a_path(f, a), x)))
        if isinstance(x, Obj):
            what = f"an object of {x.cls.__name__} that is made here is returned"
            raise Refused(what, "return a tuple or a dict of its attributes")
        if not isinstance(x, (Num, Closure)) and any_part(lambda part: isinstance(part, Kind), x):
            raise Refused(f"a {name_of_type(x)} is returned")
        return x

    has_parts = lambda a: a is None or isinstance(a, (tuple, list, dict, Obj))
    shape = lambda a: () if isinstance(a, Num) else np.shape(a)
    is_apart = lambda u: any(map(has_parts, u.alts)) or len(set(map(shape, u.alts))) > 1
    of = lambda x: finish(m.mapped(result, x)) if x is v else on_a_path(lambda values: tuple(finish(values)), x)
    return of_one_type(m.for_each(of, v, is_apart))


def line_of(function: Any) -> tuple[str, int]:
    """The first line of a function, a method or a partial."""
    function = without_partials(function)
    function = getattr(function, "__wrapped__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else core.NOWHERE
