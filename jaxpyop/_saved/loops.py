"""Loops and conds that hold a Python call, as data: each body is a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpyop import _jaxcore
from jaxpyop._op import without_weak_type

_Run = Callable[..., list[Any]]


def loop_to_data(eqn: Any, program: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Turn the equation of a loop or cond into data. `program` turns each body in it, a jaxpr, into data."""
    params, name = eqn.params, eqn.primitive.name
    if name == "scan":
        settings = [*_jaxcore.scan_counts(eqn), params["length"], params["reverse"]]
        bodies = [params["jaxpr"]]
    elif name == "while":
        settings = [params["cond_nconsts"], params["body_nconsts"]]
        bodies = [params["cond_jaxpr"], params["body_jaxpr"]]
    else:
        settings, bodies = [], params["branches"]
    return {"loop": name, "params": settings, "programs": list(map(program, bodies))}


def loop_from_data(data: dict[str, Any], program: Callable[[dict[str, Any]], _Run]) -> _Run:
    """Return a function that runs the loop on the operands of its equation."""
    bodies = list(map(program, data["programs"]))
    return {"scan": _scan, "while": _while, "cond": _cond}[data["loop"]](bodies, *data["params"])


def _scan(bodies: Sequence[_Run], consts: int, carries: int, length: int, reverse: bool) -> _Run:
    (body,) = bodies

    def run(*args: Any) -> list[Any]:
        fixed, init, rows = args[:consts], args[consts : consts + carries], args[consts + carries :]

        def turn(carry: Any, row: Any) -> tuple[list[Any], list[Any]]:
            outs = body(*fixed, *carry, *row)
            return outs[:carries], outs[carries:]

        carry, stacked = jax.lax.scan(
            turn, list(map(without_weak_type, init)), list(rows), length=length, reverse=reverse
        )
        return [*carry, *stacked]

    return run


def _while(bodies: Sequence[_Run], test_count: int, body_count: int) -> _Run:
    test, body = bodies

    def run(*args: Any) -> list[Any]:
        test_consts, body_consts = args[:test_count], args[test_count : test_count + body_count]

        init = list(map(without_weak_type, args[test_count + body_count :]))
        (test_result,) = jax.eval_shape(test, *test_consts, *init)

        def turn(state: list[Any]) -> list[Any]:
            new = body(*body_consts, *state)
            if not test_result.ndim:
                # One test decides for everything, and `while_loop` has run it already. It may have an effect, so it
                # must not run again here.
                return new
            (goes_on,) = test(*test_consts, *state)
            # Under `vmap` the test has a result for each element. A turn changes only the elements that go on.
            return [jnp.where(jnp.expand_dims(goes_on, range(goes_on.ndim, a.ndim)), b, a) for a, b in zip(state, new)]

        return jax.lax.while_loop(lambda state: jnp.any(test(*test_consts, *state)[0]), turn, init)

    return run


def _cond(bodies: Sequence[_Run]) -> _Run:
    def run(index: Any, *operands: Any) -> Any:
        return jax.lax.switch(index, bodies, *operands)

    return run
