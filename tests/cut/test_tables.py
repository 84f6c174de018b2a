"""Values, gradients and numbers of runs: the tables of the other tests with `jaxpyop.jit` in place of `jax.jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.gradients.test_gradients import BODIES, SECOND, TRANSFORMS
from tests.host.test_transforms import PROGRAMS, X, affine
from tests.shared.tape_bodies import CASES, arrays, check, float0, listed, reference
from tests.shared.util import Body, both_sides, numpy_function, py_function, trees_close

F = jnp.float32
pytestmark = pytest.mark.usefixtures("always_cut")


@pytest.mark.parametrize("name", CASES)
def test_a_body_of_the_tape_and_its_gradient(name):
    body, _, inputs = CASES[name]
    outputs, cotangents, expected = reference(name)
    tout = [jax.ShapeDtypeStruct(out.shape, out.dtype) for out in outputs]

    @jaxpyop.jit
    def both(cotangents, *inputs):
        op = lambda *args: jaxpyop.py_function(listed(body), args, tout)
        outs, pull = jax.vjp(op, *inputs)
        found = pull([float0(out, ct) for out, ct in zip(outs, cotangents)])
        return outs, [None if ct.dtype == jax.dtypes.float0 else ct for ct in found]

    with jaxpyop.config.override(constants="allow"):
        for _ in range(2):
            found, gradients = both(cotangents, *arrays(inputs))
            check(found, outputs)
            check(gradients, expected)


@pytest.mark.parametrize("loops", ["compiled", "python"])
@pytest.mark.parametrize(("program", "runs"), PROGRAMS.values(), ids=PROGRAMS)
@both_sides
def test_values_and_runs(api, program, runs, loops, checked):
    body = Body()
    compiled = jaxpyop.jit(program(lambda x: api(body, [x], F)), loops=loops)
    for count in (1, 2):
        got = compiled(X)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, program(affine)(X))
        if runs is not None:
            assert len(body.seen) == count * runs


DERIVATIVES = {**TRANSFORMS, **SECOND}


@pytest.mark.parametrize("loops", ["compiled", "python"])
@pytest.mark.parametrize("transform", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_of_a_body_that_looks_at_its_values(transform, loops):
    same = BODIES["elementwise"][0]
    op = lambda x: py_function(lambda x: same(x) if float(x[0]) < 1e9 else -x, [x], F, output_shapes=(3,))
    trees_close(jaxpyop.jit(transform(op), loops=loops)(X), transform(same)(X))


ONCE = {name: transform for name, transform in TRANSFORMS.items() if name != "second order in vmap"}


@pytest.mark.parametrize("loops", ["compiled", "python"])
@pytest.mark.parametrize("transform", ONCE.values(), ids=ONCE)
@pytest.mark.parametrize("rule", ["vjp", "fwd and bwd"])
def test_derivatives_by_a_rule(rule, transform, loops):
    slope = lambda x: np.cos(x) * x + np.sin(x)
    vjp = lambda i, o, c: (slope(i[0]) * c[0],)
    if rule != "vjp":
        vjp = (lambda x: (np.sin(x) * x, slope(x)), lambda slopes, c: (slopes * c[0],))
    op = lambda x: numpy_function(lambda x: np.sin(x) * x, [x], F, vjp=vjp)
    trees_close(jaxpyop.jit(transform(op), loops=loops)(X), transform(BODIES["elementwise"][0])(X))
