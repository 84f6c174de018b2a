"""JAX's own loops and branches, and `jax.debug.print`, in a function that is interpreted.

Under `vmap`, JAX runs both sides of a branch, and the turns of a loop for the elements that are done, too. So a loop of
JAX does not begin on a path that is not taken, where it might not end, and nothing is printed there. The functions that
JAX calls know in their turn what is taken.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop._dtypes import is_inexact
from jaxpyop._traced.values import *


def _where(m: Any, f: Any, condition: Any) -> Foreign:
    """A function of the program that JAX calls where a condition holds, which is that of the arguments."""
    function = m.function_for_jax(f)

    def called(*args: Any) -> Any:
        with m.having(taken=(*m.taken, (condition(*args), True))):
            return function(*args)

    return Foreign(called)


def _has_no_tangent(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) or (is_array(x) and not is_inexact(x))


def _while_loop(m: Any, cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    if m.auto and not all(map(_has_no_tangent, jax.tree.leaves(m.to_jax(init_val)))):
        # The function itself has a derivative where it takes another branch.
        raise Refused("a backward pass through jax.lax.while_loop")
    test, taken = m.function_for_jax(cond_fun), m.is_taken()
    goes_on = lambda state: test(state) & taken
    return m.call_jax(lax.while_loop, [Foreign(goes_on), _where(m, body_fun, goes_on), init_val], {})


def _fori_loop(m: Any, lower: Any, upper: Any, body_fun: Any, init_val: Any, **options: Any) -> Any:
    def run(lower: Any, upper: Any) -> Any:
        if type(lower) is type(upper) is int:
            # All elements of a batch have the same turns, and JAX can differentiate them.
            return m.call_jax(lax.fori_loop, [lower, upper, body_fun, init_val], options)
        if m.auto:
            raise Refused("a backward pass through a loop whose bounds are traced")
        first, last = map(jnp.asarray, map(m.to_jax, (lower, upper)))
        last = jnp.where(m.is_taken(), last, first.astype(last.dtype))
        body = _where(m, body_fun, lambda i, _: i < last)
        return m.call_jax(lax.fori_loop, [first, last, body, init_val], options)

    return m.lifted(run, lower, upper)


def _cond(m: Any, pred: Any, true_fun: Any, false_fun: Any, *operands: Any) -> Any:
    def run(pred: Any) -> Any:
        value = m.to_jax(pred)
        if not is_array(value) or value.ndim:
            return m.call_jax(lax.cond, [pred, true_fun, false_fun, *operands], {})
        holds = value if value.dtype == bool else value != 0
        sides = [_where(m, true_fun, lambda *_: holds), _where(m, false_fun, lambda *_: ~holds)]
        return m.call_jax(lax.cond, [pred, *sides, *operands], {})

    return m.lifted(run, pred)


def _switch(m: Any, index: Any, branches: Any, *operands: Any) -> Any:
    def run(index: Any) -> Any:
        functions, value = m.iterate(branches), m.to_jax(index)
        if is_array(value) and value.ndim == 0:
            number = jnp.clip(value, 0, len(functions) - 1)
            functions = tuple(_where(m, f, lambda *_, k=k: number == k) for k, f in enumerate(functions))
        return m.call_jax(lax.switch, [index, functions, *operands], {})

    return m.lifted(run, index)


def _print(m: Any, fmt: Any, /, *args: Any, ordered: Any = False, **kwargs: Any) -> Any:
    m.need_constant(fmt, ordered)

    def show(is_taken: Any, /, *args: Any, **kwargs: Any) -> None:
        if is_taken:
            print(fmt.format(*args, **kwargs))

    given = [Foreign(show), jnp.asarray(m.is_taken()), *args]
    return m.call_jax(jax.debug.callback, given, {**kwargs, "ordered": ordered})


CONTROL: list[tuple[Any, Any]] = [
    *((lax.while_loop, _while_loop), (lax.fori_loop, _fori_loop), (lax.cond, _cond), (lax.switch, _switch)),
    (jax.debug.print, _print),
]
