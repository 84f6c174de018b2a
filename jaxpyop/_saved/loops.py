"""Loops and conds that hold a Python call, as data: each body is a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore

_Run = Callable[..., list[Any]]


def loop_to_data(eqn: Any, program: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Turn an equation into data. `program` does so with the bodies in it."""
    params, name = eqn.params, eqn.primitive.name
    if name == "scan":
        of_loop = [*_jaxcore.scan_counts(eqn), params["length"], params["reverse"]]
        bodies = [params["jaxpr"]]
    elif name == "while":
        of_loop = [params["cond_nconsts"], params["body_nconsts"]]
        bodies = [params["cond_jaxpr"], params["body_jaxpr"]]
    else:
        of_loop, bodies = [], params["branches"]
    return {"loop": name, "params": of_loop, "programs": list(map(program, bodies))}


def loop_from_data(data: dict[str, Any], program: Callable[[dict[str, Any]], _Run]) -> _Run:
    """Return a function that runs the loop on the operands of the equation."""
    bodies = list(map(program, data["programs"]))
    return {"scan": _scan, "while": _while, "cond": _cond}[data["loop"]](bodies, *data["params"])


def _scan(bodies: Sequence[_Run], consts: int, carries: int, length: int, reverse: bool) -> _Run:
    (body,) = bodies

    def run(*args: Any) -> list[Any]:
        fixed, init, rows = args[:consts], args[consts : consts + carries], args[consts + carries :]

        def turn(carry: Any, row: Any) -> tuple[list[Any], list[Any]]:
            outs = body(*fixed, *carry, *row)
            return outs[:carries], outs[carries:]

        carry, stacked = jax.lax.scan(turn, list(map(_strong, init)), list(rows), length=length, reverse=reverse)
        return [*carry, *stacked]

    return run


def _while(bodies: Sequence[_Run], of_test: int, of_body: int) -> _Run:
    test, body = bodies

    def run(*args: Any) -> list[Any]:
        first, second = args[:of_test], args[of_test : of_test + of_body]

        def turn(state: list[Any]) -> list[Any]:
            new = body(*second, *state)
            (goes_on,) = test(*first, *state)
            if not goes_on.ndim:
                return new
            # Under `vmap` the test can differ by element, and a turn changes only the elements that go on.
            return [jnp.where(jnp.expand_dims(goes_on, range(goes_on.ndim, a.ndim)), b, a) for a, b in zip(state, new)]

        init = list(map(_strong, args[of_test + of_body :]))
        return jax.lax.while_loop(lambda state: jnp.any(test(*first, *state)[0]), turn, init)

    return run


def _cond(bodies: Sequence[_Run]) -> _Run:
    def run(index: Any, *operands: Any) -> Any:
        return jax.lax.switch(index, bodies, *operands)

    return run


def _strong(x: Any) -> Any:
    # The state of a loop keeps its type, and exported segments return no weak types.
    return jax.lax.convert_element_type(x, x.dtype)
