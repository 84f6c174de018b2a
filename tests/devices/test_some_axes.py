"""A `shard_map` over some axes of a mesh, where XLA partitions over the others: it would abort the process."""

import pytest

from tests.shared.processes import on_devices, run_python

PROGRAM = """
import jaxpyop, jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
op = lambda x: jaxpyop.numpy_function(lambda x: x * 2, [x], jax.ShapeDtypeStruct(x.shape, x.dtype), {options})
program = jax.jit(jax.shard_map(op, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={axes}))
try:
    print(program(jnp.arange(4.0)))
except NotImplementedError as error:
    print(error)
"""
REFUSED = "a stateful op is inside a shard_map over some axes of a mesh only"
# The op's options, the axes of the shard_map, and what is printed.
CASES = {
    "stateless": ("", {"i"}, "[0. 2. 4. 6.]"),
    "stateful": ("stateful=True", {"i"}, REFUSED),
    "ordered": ("stateful=True, ordered=True", {"i"}, REFUSED),
    "ordered over all axes": ("stateful=True, ordered=True", {"i", "j"}, "[0. 2. 4. 6.]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_shard_map_over_some_axes(name):
    options, axes, expected = CASES[name]
    done = run_python(PROGRAM.format(options=options, axes=axes), **on_devices(4))
    assert expected in done.stdout
