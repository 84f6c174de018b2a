"""Functions of Python that are written for traced numbers. To allow one more, add a row to `ROWS`.

Each takes the machine, and then the arguments that the program gives.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpyop._traced.calls import BUILTINS, Calls
from jaxpyop._traced.operators import name_of_type
from jaxpyop._traced.values import *


def _of_list(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the items of something. A list whose length depends on values is taken apart first.

    Python computes the items of an iterator while the function runs, which nobody sees if they change nothing.
    """

    def g(m: Calls, it: Any, *args: Any, **kwargs: Any) -> Any:
        def of(i: Any) -> Any:
            with m.unchanged("an iterator"):
                items = m.iterate(i)
            return f(m, items, *args, **kwargs)

        return m.lifted(of, m.known_length(it))

    return g


def _sum(m: Calls, items: Any, start: Any = 0) -> Any:
    terms = [x for x in (start, *items) if is_scalar(x) and not (type(x) is int and x == 0)]
    is_traced, has_floats = any(isinstance(x, Num) for x in terms), any(kind_of(x) == "f" for x in terms)
    if sys.version_info >= (3, 12) and len(terms) > 2 and is_traced and has_floats:
        raise Refused("sum() of floats, whose rounding Python makes up for", "write a loop, or use jnp.sum")
    known = next((i for i, x in enumerate(items) if not isinstance(x, CONSTANT_TYPES)), len(items))
    if isinstance(start, CONSTANT_TYPES):
        start, items = m.python(sum, items[:known], start), items[known:]
    for x in items:
        start = m.binary(ast.Add, start, x)
    return start


def _reduce(m: Calls, f: Any, it: Any, *start: Any) -> Any:
    return m.python(functools.reduce, lambda a, b: m.call(f, [a, b], {}), itertools.chain(start, m.lazily(it)))


def _extreme(op: type) -> Callable[..., Any]:
    """`min` or `max`."""

    def of(m: Calls, items: Any, key: Any, default: Any) -> Any:
        if not items:
            return m.python(max, ()) if default is UNDEF else default

        def rank_of(x: Any) -> Any:
            with m.unchanged("a key of min() or max()"):
                return x if key is None else m.call(key, [x], {})

        best, rank = items[0], rank_of(items[0])
        for x in items[1:]:
            r = rank_of(x)
            both = is_scalar(best) and is_scalar(x) and kind_of(best) == kind_of(x)
            if key is None and both and any(isinstance(v, Num) for v in (best, x)):
                best = rank = _extreme_number(op, best, x)
                continue
            better = m.truth(m.compare(op, r, rank))
            best, rank = m.branch(better, lambda x=x, r=r: (x, r), lambda best=best, rank=rank: (best, rank))
        return best

    def pick(m: Calls, *args: Any, key: Any = None, default: Any = UNDEF) -> Any:
        if len(args) == 1:
            return _of_list(of)(m, args[0], key, default)
        return of(m, tuple(args), key, default)

    return pick


def _extreme_number(op: type, old: Any, new: Any) -> Any:
    f = min if op is ast.Lt else max
    better = num_compare(operator.lt if op is ast.Lt else operator.gt, new, old)
    if isinstance(better, bool):
        return new if better else old
    val = wide(lambda: jnp.where(better.val, raw(new), raw(old)))
    return Num(kind_of(new), val, *map(f, bounds(new), bounds(old)))


def _sorted(m: Calls, items: Any, key: Any = None, reverse: Any = False) -> Any:
    ranks = [x if key is None else m.call(key, [x], {}) for x in items]
    if all(isinstance(r, (bool, int, float, str)) for r in ranks):
        order = m.python(lambda: sorted(range(len(items)), key=lambda i: ranks[i], reverse=reverse))
        return m.new_list(items[i] for i in order)
    raise Refused("sorted() of traced values", "use jnp.sort")


def _range(m: Calls, *args: Any) -> Any:
    given = [of_array(a) if is_array(a) else a for a in args]

    def of(*args: Any) -> Any:
        if not any(isinstance(a, Num) for a in args):
            m.need_constant(*args)
            return m.python(range, *args)
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if not isinstance(step, int) or step == 0 or any(kind_of(a) not in "bi" for a in args):
            raise Refused("a range with a traced step, or of what are no integers", "write int(n) or n.astype(int)")
        return TracedRange(start, stop, step)

    return m.lifted(of, *given)


def _float(m: Calls, v: Any) -> Any:
    if is_array(v):
        return m.number_of(v, "f")
    if isinstance(v, Num):
        return Num("f", raw(v, "f"))
    return m.of_constants(float, [v], {})


def _int(m: Calls, v: Any, *rest: Any) -> Any:
    v = of_array(v) if is_array(v) and not rest else v
    if isinstance(v, Num) and not rest:
        return to_int(jnp.trunc, v)
    return m.of_constants(int, [v, *rest], {})


def _round(m: Calls, v: Any, digits: Any = None) -> Any:
    if (is_array(v) and digits is None) or (isinstance(v, Num) and digits is not None):
        raise Refused("round() of an array to an integer, or of a traced number to digits", "use jnp.round")
    if is_array(v):
        return m.python(jnp.round, v, digits)
    if isinstance(v, Num):
        return to_int(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), v)
    return m.of_constants(round, [v, digits], {})


def _abs(m: Calls, v: Any) -> Any:
    if isinstance(v, Num):
        kind, (lo, hi) = "i" if v.kind == "b" else v.kind, bounds(v)
        return Num(kind, wide(lax.abs, raw(v, kind)), max(0, lo, -hi), max(abs(lo), abs(hi)))
    if not is_array(v):
        m.need_constant(v)
    return m.python(abs, v)


def _isinstance(m: Calls, v: Any, t: Any) -> Any:
    ts = t if isinstance(t, tuple) else (t,)
    for c in ts:
        if type(c) not in (type, type(jax.Array)):
            raise Refused("isinstance of a type that decides for itself")
    if isinstance(v, Num):
        own = {"b": (bool, int), "i": (int,), "f": (float,)}[v.kind]
        return any(c in own or c is object for c in ts)
    if is_array(v):
        return any(c in (jax.Array, object) for c in ts)
    if isinstance(v, Obj):
        return any(isinstance(v.cls, type) and issubclass(v.cls, c) for c in ts)
    if not isinstance(v, (tuple, list, dict, *CONSTANT_TYPES)):
        raise Refused(f"isinstance of a {name_of_type(v)}")
    return m.python(isinstance, v, ts)


def _any(end: bool) -> Callable[..., Any]:
    """`any` or `all`: the result `end` comes with the first item that has it, and no further item is asked for."""

    def of(m: Calls, values: Iterator[Any]) -> Any:
        if (x := next(values, UNDEF)) is UNDEF:
            return not end
        return m.branch(m.truth(x if end else m.not_(x)), lambda: end, lambda: of(m, values))

    return lambda m, v: m.lifted(lambda i: of(m, m.lazily(i)), m.known_length(m.check_lazy(v)))


def _reversed(m: Calls, it: Any) -> Any:
    if isinstance(it, Iter):
        raise PyRaise(TypeError("an iterator is not reversible"))
    if isinstance(it, Obj) and it.cls is list:
        return Iter(m.of_list(it, len(m.items(it)) - 1, -1))
    return Iter(iter(it[::-1] if isinstance(it, range) else m.iterate(it)[::-1]))


def _zip(m: Calls, *its: Any, strict: Any = False) -> Any:
    if strict and len({m.python(int, m.length(it)) for it in its}) > 1:
        raise PyRaise(ValueError("zip() of arguments of several lengths"))
    return Iter(zip(*map(m.lazily, its)))


def _enumerate(m: Calls, it: Any, start: Any = 0) -> Any:
    m.need_constant(start)
    return Iter(enumerate(m.lazily(it), start))


def _dict(m: Calls, *args: Any, **kwargs: Any) -> Any:
    out = m.new_dict()
    m.dict_method(out, "update", args, kwargs)
    return out


def _replace(m: Calls, obj: Any, **changes: Any) -> Any:
    cls = obj.cls if isinstance(obj, Obj) else type(obj)
    values = {f.name: m.get_attr(obj, f.name) for f in dataclasses.fields(cls) if f.init}
    return m.call(cls, [], {**values, **changes})


def _of_constants(f: Any) -> Callable[..., Any]:
    return lambda m, *args, **kwargs: m.of_constants(f, args, kwargs)


def _one(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a value, for each alternative of that value."""
    return lambda m, v=0, *rest, **kwargs: m.lifted(lambda a: f(m, a, *rest, **kwargs), v)


def _operator(op: type) -> Callable[..., Any]:
    return lambda m, a, b: m.binary(op, a, b)


def _compared(op: type) -> Callable[..., Any]:
    return lambda m, a, b: m.compare(op, a, b)


def _hasattr(m: Calls, v: Any, name: str) -> bool:
    if not (is_array(v) and name in ("dtype", "shape", "ndim", "size")) and not isinstance(v, CONSTANT_TYPES):
        raise Refused(f"hasattr(v, {name!r}) of a {name_of_type(v)}", "use isinstance")
    return is_array(v) or hasattr(v, name)


# One row for each function.
ROWS: list[tuple[Any, Callable[..., Any]]] = [
    *((sum, _of_list(_sum)), (min, _extreme(ast.Lt)), (max, _extreme(ast.Gt)), (sorted, _of_list(_sorted))),
    *((any, _any(True)), (all, _any(False)), (range, _range), (reversed, _reversed)),
    *((float, _one(_float)), (int, _one(_int)), (round, _one(_round)), (abs, _one(_abs))),
    *((zip, _zip), (dict, _dict), (functools.reduce, _reduce)),
    (dataclasses.replace, _one(_replace)),
    (map, lambda m, f, *its: Iter(map(lambda *xs: m.call(f, xs, {}), *map(m.lazily, its)))),
    (enumerate, _enumerate),
    (bool, lambda m, v=False: m.truth_value(v)),
    (len, lambda m, v: m.lifted(m.length, v)),
    (list, lambda m, v=(): m.lifted(lambda i: m.new_list(m.iterate(i)), m.known_length(v))),
    (tuple, lambda m, v=(): m.lifted(m.iterate, m.known_length(v))),
    *((isinstance, _one(_isinstance)), (hasattr, _one(_hasattr))),
    *((f, _of_constants(f)) for f in (print, str, repr, complex, pow, ord, chr, frozenset)),
    (slice, lambda m, *ends: m.new_slice(*ends)),
    (functools.partial, lambda m, f, *args, **kwargs: Partial(f, tuple(args), kwargs)),
    (divmod, lambda m, a, b: (m.binary(ast.FloorDiv, a, b), m.binary(ast.Mod, a, b))),
    (itertools.pairwise, lambda m, it: Iter(itertools.pairwise(m.lazily(it)))),
    (itertools.chain, lambda m, *its: Iter(x for it in its for x in m.lazily(it))),
    (contextlib.nullcontext, lambda m, v=None: v),
    *((PYTHON_OPS[op], _operator(op)) for op in PYTHON_OPS),
    *((COMPARE[op], _compared(op)) for op in COMPARE),
    (operator.neg, lambda m, v: m.unary(ast.USub, v)),
    (operator.getitem, lambda m, box, key: m.get_item(box, key)),
    (operator.index, _of_constants(operator.index)),
]
BUILTINS.update((id(f), row) for f, row in ROWS)
