"""Where an op shows under its name: in jaxprs, in compiled programs, in the profiler's trace."""

import glob
import gzip
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop
from tests.shared.util import APIS, NUMPY_APIS

pytestmark = pytest.mark.usefixtures("compiled_here")


def double(x):
    return 2 * x


def op_of(api, **options):
    return lambda x: APIS[api](double, [x], jnp.float32, name="halo", **options)


@pytest.mark.parametrize("api", APIS)
def test_in_the_jaxpr(api):
    assert re.search(r"call=\w+(\.\w+)* 'halo'", str(jax.make_jaxpr(op_of(api))(1.0)))


def test_derivatives_in_the_jaxpr():
    text = str(jax.make_jaxpr(jax.grad(op_of("py_function")))(1.0))
    assert "RecordingCall(py_function 'halo')" in text
    assert "ReplayCall(py_function 'halo')" in text


def names_in_hlo(f, x):
    return set(re.findall(r'op_name="([^"]*)"', jax.jit(f).lower(x).compile().as_text()))


@pytest.mark.parametrize("api", APIS)
def test_in_the_compiled_program(api, transport):
    found = [name for name in names_in_hlo(op_of(api), 1.0) if "/halo/" in name]
    assert found
    assert all(name.endswith(("callback", "python_call")) for name in found)


def test_traced_in_the_compiled_program():
    assert any("/halo/mul" in name for name in names_in_hlo(op_of("py_function", mode="traced"), 1.0))


@pytest.mark.parametrize("wrap", ["jvp", "transpose"])
def test_derivatives_in_the_compiled_program(wrap, transport):
    found = names_in_hlo(jax.grad(op_of("py_function")), 1.0)
    wanted = {"jvp": "/jvp(halo)/", "transpose": "/transpose(jvp(halo))/"}[wrap]
    assert any(wanted in name for name in found)


def events(directory):
    (path,) = glob.glob(f"{directory}/**/*.trace.json.gz", recursive=True)
    with gzip.open(path) as file:
        return [event.get("name") for event in json.load(file)["traceEvents"]]


PROFILED = {
    "direct": ([op_of(api) for api in APIS], ["halo"] * 4),
    "jit": ([jax.jit(op_of(api)) for api in APIS], ["halo"] * 4),
    "vmap": ([lambda x: jax.jit(jax.vmap(op_of("numpy_function")))(jnp.full(3, x))], ["halo"]),
    "parallel": ([lambda x: jax.vmap(op_of("numpy_function", vmap_method="parallel"))(jnp.full(3, x))], ["halo"]),
    "grad": ([jax.jit(jax.grad(op_of("py_function")))], ["jvp(halo)", "transpose(jvp(halo))"]),
    "jvp": ([lambda x: jax.jvp(op_of("py_function"), (x,), (x,))], ["jvp(halo)", "jvp(halo)"]),
    "vjp=": (
        [jax.grad(op_of("numpy_function", vjp=lambda xs, ys, cts: 2 * cts[0]))],
        ["halo", "transpose(jvp(halo))"],
    ),
}


@pytest.mark.parametrize("case", PROFILED)
def test_in_the_profile(case, transport, tmp_path):
    programs, expected = PROFILED[case]
    for run in programs:  # compile first: some run Python while JAX traces
        jax.block_until_ready(run(1.0))
    with jax.profiler.trace(tmp_path):
        for run in programs:
            jax.block_until_ready(run(1.0))
        jax.effects_barrier()
    assert [name for name in events(tmp_path) if name and "halo" in name] == expected


def test_the_default_is_the_name_of_the_function(tmp_path):
    with jax.profiler.trace(tmp_path):
        jaxpyop.numpy_function(np.sinh, [1.0], jnp.float32)
    assert "sinh" in events(tmp_path)


def test_numpy_functions_are_stateful_by_default_where_the_jaxpr_says_so():
    stateful = {api: bool(jax.make_jaxpr(op_of(api))(1.0).effects) for api in NUMPY_APIS}
    assert stateful == {"numpy_function": False, "py_func": True, "contrib": True}
