"""The bodies of `test_fuzz`'s programs: expressions over `jnp` or `np`, and without a Python `if`.

Values are multiples of 1/4 and predicates ask inputs alone, so that rounding
does not decide a branch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _as_work(xp: Any, x: Any, work: Any) -> Any:
    """A leaf in the dtype that an output is computed in; floats become signs among integers."""
    kind = np.dtype(x.dtype).kind
    if work.kind in "iub":
        x = xp.real(x) > 0 if kind in "fcV" else x
    elif work.kind != "c" and kind == "c":
        x = xp.real(x)
    return x.astype(work)


def _times_table(x: Any) -> Any:
    table = np.full((), 0.75, x.dtype)  # an array that a jitted function closes over
    return jax.jit(lambda x: x * table)(x)


def _relu_by_row(x: Any) -> Any:
    return x * 0.5 if jnp.iscomplexobj(x) else jax.vmap(lambda x: jax.nn.relu(x) - jax.nn.relu(-x))(x) * 0.5


_UNARY = {
    "sin": lambda xp, x: xp.sin(x),
    "tanh": lambda xp, x: xp.sin(x * 0.5),
    "square": lambda xp, x: x * x * 0.25,
    "neg": lambda xp, x: -x,
    "cos": lambda xp, x: xp.cos(x),
    "jit": lambda xp, x: jax.jit(jnp.sin)(x) if xp is jnp else np.sin(x),
    "jit constant": lambda xp, x: _times_table(x) if xp is jnp else x * 0.75,
    "vmap relu": lambda xp, x: _relu_by_row(x) if xp is jnp and x.ndim else x * 0.5,
    "scan": lambda xp, x: lax.scan(lambda c, _: (c * 0.5, None), x, None, length=2)[0] if xp is jnp else x * 0.25,
    "cond": lambda xp, x: lax.cond(True, jnp.cos, jnp.sin, x) if xp is jnp else np.cos(x),
    "relu": lambda xp, x: xp.where(xp.real(x) > 0, x, x * 0) if xp is np or jnp.iscomplexobj(x) else jax.nn.relu(x),
}


def _evaluate(xp: Any, expr: Any, leaves: dict[int, Any], output: Any) -> Any:
    work = jnp.dtype(output.work)
    if isinstance(expr, int):
        return _as_work(xp, leaves[expr], work)
    name, *parts = expr
    parts = [_evaluate(xp, part, leaves, output) for part in parts]
    if output.kind == "bool":
        return ~parts[0] if len(parts) == 1 else parts[0] ^ parts[1]
    if output.kind == "int":
        return parts[0] + 1 if len(parts) == 1 else parts[0] + parts[1]
    if len(parts) == 1:
        return _UNARY[name](xp, parts[0]).astype(work)
    return {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}[name](*parts)


def _formed(xp: Any, value: Any, output: Any) -> Any:
    if output.form == "sum":
        value = xp.sum(value, dtype=jnp.dtype(output.work)) if output.kind != "bool" else xp.any(value)
    elif output.form == "last" and value.ndim:
        value = value[..., -1:] * 1 if output.kind != "bool" else value[..., -1:]
    elif output.form == "stack":
        value = xp.stack([value, value], -1)
    return value


def _within(xp: Any, value: Any, output: Any) -> Any:
    return xp.clip(value, 0, 100).astype(value.dtype) if output.kind == "int" else value


def _cast(xp: Any, value: Any, output: Any) -> Any:
    dtype = jnp.dtype(output.dtype)
    if np.dtype(value.dtype).kind == "c" and dtype.kind != "c":
        value = xp.real(value)
    return value.astype(dtype)


def _pivot(case: Any) -> int:
    """The leaf that decides where a body branches."""
    return next(k for k, leaf in enumerate(case.leaves) if leaf.kind == "array")


def _measure(xp: Any, x: Any) -> Any:
    return xp.sum(xp.real(x).astype("float32"))


BOUND = 0.3


def _is_large(xp: Any, how: str, x: Any) -> Any:
    """The value by which an eager body branches, asked for in one of these ways."""
    total = _measure(xp, x)
    if how == "float":
        return float(total) > BOUND
    if how == "item":
        return total.item() > BOUND
    if how == "asarray":
        return np.asarray(x).real.astype(np.float32).sum() > BOUND
    return total > BOUND


def _other(xp: Any, value: Any, output: Any) -> Any:
    """What the other branch makes of a result."""
    if output.kind == "bool":
        return ~value
    return value * 2 if output.kind == "int" else (value * 0.5).astype(value.dtype)


def _turns(x: Any, xp: Any) -> Any:
    return 1 + (_measure(xp, x) > BOUND)


def _number_of(key: Any) -> Any:
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return ((jax.random.key_data(key) if is_typed else key) % 5).sum()


def results(xp: Any, case: Any, leaves: dict[int, Any], reference: bool) -> list[Any]:
    """All results of a body: over `jnp`, over `np`, or as the reference without a Python `if`."""
    leaves = {k: _number_of(v) if case.leaves[k].is_key else v for k, v in leaves.items()}
    outs = [_formed(xp, _evaluate(xp, o.expr, leaves, o), o) for o in case.outputs]
    if case.branch is not None:
        outs = _branched(xp, case, leaves[_pivot(case)], outs, reference)
    outs = [_within(xp, out, o) for out, o in zip(outs, case.outputs)]
    if reference:
        return [_cast(xp, out, o) for out, o in zip(outs, case.outputs)]
    return [_returned(xp, out, o) for out, o in zip(outs, case.outputs)]


def _returned(xp: Any, value: Any, output: Any) -> Any:
    if output.python and value.ndim == 0:
        return value.item()
    return _cast(xp, value, output) if output.cast else value


def _branched(xp: Any, case: Any, pivot: Any, outs: list[Any], reference: bool) -> list[Any]:
    other = lambda outs: [_other(xp, out, o) for out, o in zip(outs, case.outputs)]
    if case.branch == "loop":
        if reference:
            return [jnp.where(_turns(pivot, xp) > 1, b, a) for a, b in zip(other(outs), other(other(outs)))]
        for _ in range(int(_turns(pivot, xp))):
            outs = other(outs)
        return outs
    if reference:
        return [jnp.where(_measure(xp, pivot) > BOUND, a, b) for a, b in zip(outs, other(outs))]
    return outs if _is_large(xp, case.branch, pivot) else other(outs)
