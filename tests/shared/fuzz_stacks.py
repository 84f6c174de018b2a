"""Transformations for `test_fuzz`: each takes a program to a program.

A program is a function of a list of arrays that returns a pytree of arrays, so
that any transformation can follow any other.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

REVERSE = ("grad", "value_and_grad", "jacrev")
FORWARD = ("jvp", "jacfwd")
STAGING = ("jit", "donating jit", "scan", "scan xs", "fori_loop", "while_loop", "cond", "checkpoint", "map")
TWICE = ("vmap", "scan", "scan xs", "fori_loop", "while_loop", "map")  # run the rest of the stack twice


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def is_narrow(x: Any) -> bool:
    return is_inexact(x) and jnp.finfo(x.dtype).bits < 32


def weigh(out: Any) -> Any:
    """One real number of all inexact results."""
    total = jnp.zeros((), jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)
    for leaf in jax.tree.leaves(out):
        if is_inexact(leaf):
            weights = jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape)
            weights = weights + 0.5j * weights if jnp.iscomplexobj(leaf) else weights
            total = total + jnp.real((leaf.astype(weights.dtype) if is_narrow(leaf) else leaf) * weights).sum()
    return total


def is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def perturbed(a: Any) -> Any:
    if is_key(a):
        return jax.random.fold_in(a, 1)
    return ~a if a.dtype == jnp.bool_ else a * 0.5 if is_inexact(a) else a + 1


def pair(args: Any, axis: int = 0) -> Any:
    return [jnp.stack([a, perturbed(a)], axis) for a in args]


def fed_back(args: Any, out: Any) -> Any:
    """The next step's inputs: of this step's results too, but where rounding would decide a branch."""
    if any(map(is_narrow, args)):
        return [a.astype(old.dtype) if is_inexact(a) else a for a, old in zip(map(perturbed, args), args)]
    total = 0.1 * weigh(out)
    return [(perturbed(a) + total).astype(a.dtype) if is_inexact(a) else perturbed(a) for a in args]


def zeros_of(f: Any, args: Any) -> Any:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(f, args))


def _decides(args: Any) -> Any:
    return jnp.real(args[0]).astype(jnp.float32).sum() > 0.1


def _vmap(f: Any, how: Any) -> Any:
    mask, axis = how

    def run(args: Any) -> Any:
        chosen = [mask >> k & 1 for k in range(len(args))]
        chosen = chosen if any(chosen) else [1] * len(args)
        batched = [jnp.stack([a, perturbed(a)], axis) if c else a for a, c in zip(args, chosen)]
        return jax.vmap(f, in_axes=([axis if c else None for c in chosen],))(batched)

    return run


def _over(f: Any, args: Any, use: Any) -> tuple[Any, list[Any]]:
    """`f` as a function of those of its inputs that `use` takes, and these."""
    at = [k for k, a in enumerate(args) if use(a)]

    def of_those(xs: Any) -> Any:
        full = list(args)
        for k, x in zip(at, xs):
            full[k] = x
        return f(full)

    return of_those, [args[k] for k in at]


def _grad(f: Any, aux: Any) -> Any:
    def run(args: Any) -> Any:
        g, xs = _over(f, args, is_inexact)
        if not xs:
            return f(args)
        if aux:
            return jax.grad(lambda xs: (weigh(out := g(xs)), out), has_aux=True)(xs)
        return jax.grad(lambda xs: weigh(g(xs)))(xs)

    return run


def _tangents(xs: Any) -> Any:
    return [jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape).astype(x.dtype) for x in xs]


def _jvp(f: Any, _: Any) -> Any:
    def run(args: Any) -> Any:
        g, xs = _over(f, args, is_inexact)
        if not xs:
            return f(args)
        out, tangent = jax.jvp(g, (xs,), (_tangents(xs),))
        return out, [t for t in jax.tree.leaves(tangent) if t.dtype != jax.dtypes.float0]

    return run


def _is_real(x: Any) -> bool:
    return is_inexact(x) and not jnp.iscomplexobj(x)


def _jacobian(derive: Any) -> Any:
    def transform(f: Any, _: Any) -> Any:
        def run(args: Any) -> Any:
            g, xs = _over(f, args, _is_real)
            # JAX has no Jacobian of nothing: the inputs' sum is there always.
            reals = lambda xs: [xs[0].sum(), *(out for out in jax.tree.leaves(g(xs)) if _is_real(out))]
            return derive(reals)(xs) if xs else f(args)

        return run

    return transform


def _scan(f: Any, _: Any) -> Any:
    def step(args: Any, _: Any) -> Any:
        out = f(args)
        return fed_back(args, out), out

    return lambda args: lax.scan(step, args, None, length=2)


def _scan_xs(f: Any, _: Any) -> Any:
    return lambda args: lax.scan(lambda c, xs: (c + 1, f(xs)), 0, pair(args), reverse=True)[1]


def _fori_loop(f: Any, _: Any) -> Any:
    def step(i: Any, carry: Any) -> Any:
        out = f(carry[0])
        return fed_back(carry[0], out), out

    return lambda args: lax.fori_loop(0, 2, step, (args, zeros_of(f, args)))


def _while_loop(f: Any, value: Any) -> Any:
    def step(carry: Any) -> Any:
        out = f(carry[1])
        return carry[0] + 1, fed_back(carry[1], out), out

    def run(args: Any) -> Any:
        go_on = lambda c: (c[0] < 2) & _decides(args) if value else c[0] < 2
        return lax.while_loop(go_on, step, (0, args, zeros_of(f, args)))[1:]

    return run


def _cond(f: Any, predicate: Any) -> Any:
    def run(args: Any) -> Any:
        chosen = {"value": _decides(args), "taken": jnp.bool_(True), "not taken": jnp.bool_(False)}[predicate]
        return lax.cond(chosen, f, lambda args: zeros_of(f, args), args)

    return run


def _donating_jit(f: Any, _: Any) -> Any:
    def run(args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what cannot be donated
            return jax.block_until_ready(jax.jit(f, donate_argnums=0)(args))

    return run


TRANSFORMATIONS = {
    "donating jit": _donating_jit,
    "jit": lambda f, _: jax.jit(f),
    "vmap": _vmap,
    "grad": lambda f, _: _grad(f, False),
    "value_and_grad": lambda f, _: _grad(f, True),
    "jacrev": _jacobian(jax.jacrev),
    "jvp": _jvp,
    "jacfwd": _jacobian(jax.jacfwd),
    "scan": _scan,
    "scan xs": _scan_xs,
    "fori_loop": _fori_loop,
    "while_loop": _while_loop,
    "cond": _cond,
    "checkpoint": lambda f, _: jax.checkpoint(f),
    "map": lambda f, _: lambda args: lax.map(f, pair(args)),
}


def stacked(f: Any, stack: Any) -> Any:
    """A program under a stack of transformations, outermost first."""
    for name, how in reversed(stack):
        f = TRANSFORMATIONS[name](f, how)
    return f
