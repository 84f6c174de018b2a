"""Where an op shows under its name and the user's line: in jaxprs, compiled programs and the profiler's trace."""

import glob
import gzip
import json
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.shared.functions import APIS, every_api

F = jnp.float32
# Parts of paths that are plain letters wherever the checkout is: XLA escapes all others.
OURS = os.path.join("jaxpyop", "_")
USERS = os.path.join("tests", "functions", "test_names.py")


def double(x):
    return 2 * x


def op_of(api, **options):
    return lambda x: APIS[api](double, [x], F, name="halo", **options)


@pytest.mark.parametrize("api", APIS)
def test_in_the_jaxpr_and_in_the_compiled_program(api):
    assert "'halo'" in str(jax.make_jaxpr(op_of(api))(1.0))
    text = jax.jit(op_of(api)).lower(1.0).compile().as_text()
    assert any("/halo/" in name for name in re.findall(r'op_name="([^"]*)"', text))


def test_derivatives_and_traced_functions_in_the_compiled_program():
    names = lambda f: " ".join(re.findall(r'op_name="([^"]*)"', jax.jit(f).lower(1.0).compile().as_text()))
    derivative = names(jax.grad(op_of("py_function")))
    assert "/jvp(halo)/" in derivative
    assert "/transpose(jvp(halo))/" in derivative
    assert "/halo/mul" in names(op_of("py_function", mode="traced"))


def test_the_line_of_an_op_is_the_users():
    """JAX shows no line of this package's own, where it shows lines."""
    for f in (op_of("numpy_function"), jax.grad(op_of("py_function"))):
        lowered = jax.jit(f).lower(1.0)
        compiled = lowered.compile().as_text()
        for text in (jax.make_jaxpr(f)(1.0).pretty_print(source_info=True), lowered.as_text(debug_info=True), compiled):
            assert USERS in text
            assert OURS not in text


PROFILED = {
    "jit": (jax.jit(op_of("py_func")), ["halo"]),
    "vmap": (lambda x: jax.jit(jax.vmap(op_of("numpy_function")))(jnp.full(3, x)), ["halo"]),
    "grad": (jax.jit(jax.grad(op_of("py_function"))), ["jvp(halo)", "transpose(jvp(halo))"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("run", "expected"), PROFILED.values(), ids=PROFILED)
def test_in_the_profile(run, expected, tmp_path):
    jax.block_until_ready(run(1.0))  # compile first: some run Python while JAX traces
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(run(1.0))
        jax.effects_barrier()
    (path,) = glob.glob(f"{tmp_path}/**/*.trace.json.gz", recursive=True)
    with gzip.open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert [name for name in names if name and "halo" in name] == expected


@every_api
def test_the_default_name_is_that_of_the_function(api):
    for func, name in ((np.sinh, "sinh"), (double, "double"), (lambda x: x, "lambda")):
        assert f"'{name}'" in str(jax.make_jaxpr(lambda x: api(func, [x], F, output_shapes=()))(1.0))  # noqa: B023
