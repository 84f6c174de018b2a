"""The ways in which a program applies an op to each of some values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P


def _stacked(outs):
    return jax.tree.map(lambda *parts: jnp.stack(parts), *outs)


def _nested(op, xs):
    out = jax.vmap(jax.vmap(op))(xs.reshape(2, 2, *xs.shape[1:]))
    return jax.tree.map(lambda a: a.reshape(4, *a.shape[2:]), out)


def _in_cond(op, x):
    taken = lambda x: op(x)
    return lax.cond(jnp.array(True), taken, taken, x)


def _sharded(op, xs):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(jax.vmap(op), mesh=mesh, in_specs=P("d"), out_specs=P("d"))(xs)


# Each takes an op of one value and four values, and gives the four results stacked.
WAYS = {
    "in turn": lambda op, xs: _stacked([op(x) for x in xs]),
    "vmap": lambda op, xs: jax.vmap(op)(xs),
    "vmap of vmap": _nested,
    "scan": lambda op, xs: lax.scan(lambda c, x: (c, op(x)), 0, xs)[1],
    "vmap of scan": lambda op, xs: jax.vmap(
        lambda row: jax.tree.map(lambda a: a[0], lax.scan(lambda c, x: (c, op(x)), 0, row)[1])
    )(xs[:, None]),
    "scan of vmap": lambda op, xs: jax.tree.map(
        lambda a: a[0], lax.scan(lambda c, row: (c, jax.vmap(op)(row)), 0, xs[None])[1]
    ),
    "cond": lambda op, xs: _stacked([_in_cond(op, x) for x in xs]),
    "shard_map": _sharded,
}

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
