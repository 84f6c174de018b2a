"""Functions that Numba compiled, in compiled programs: one call, a loop, a batch, a gradient, several devices."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxpyop
from tests.bench.cases.case import ONE, SCALAR, compare, compare_compiled, numpy_negative, optional


def _negative(x):
    return -x


def _collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def _energy(x):
    total = 0.0
    for k in range(x.size - 1):
        total += (x[k + 1] - x[k]) ** 2
    return total


def _force(inputs, outputs, cotangents):
    x = inputs[0]
    slope = x * 0
    for k in range(x.size - 1):
        d = 2 * (x[k + 1] - x[k]) * cotangents
        slope[k] -= d
        slope[k + 1] += d
    return (slope,)


def _energy_and_steps(x):
    steps = x[1:] - x[:-1]
    return (steps**2).sum(), steps


def _force_of_steps(inputs, outputs, cotangents):
    slope = inputs[0] * 0
    slope[1:] += 2 * outputs[1] * cotangents[0]
    slope[:-1] -= 2 * outputs[1] * cotangents[0]
    return (slope,)


def _force_of_residuals(steps, cotangents):
    slope = np.zeros(steps.size + 1, np.float32)
    slope[1:] += 2 * steps * cotangents
    slope[:-1] -= 2 * steps * cotangents
    return (slope,)


def _sums(x):
    return np.cumsum(x)


def _sums_transpose(cotangents):
    return np.cumsum(cotangents[::-1])[::-1]


def _fill(x, out):
    for k in range(x.size):
        out[k] = -x[k]


def _op(func, tout=jnp.float32, out=False, copy=True, **rules):
    njit = importlib.import_module("numba").njit
    rules = {name: tuple(map(njit, rule)) if type(rule) is tuple else njit(rule) for name, rule in rules.items()}
    return jaxpyop.numpy_function(Tout=tout, out=out, copy=copy, **rules)(njit(func))


def _pure(func, like=ONE):
    return lambda x: jax.pure_callback(func, like, x, vmap_method="sequential")


def native_calls():
    programs = {
        "a function of Numba's": _op(_negative),
        "jit without a callback": jnp.negative,
        "numpy_function": numpy_negative(),
        "jax.pure_callback": _pure(_negative),
    }
    return compare_compiled("native, float32[1] under jit", programs, jnp.ones(1))


def native_loops():
    loop = lambda op: lambda x: jax.lax.scan(lambda c, _: (op(c), None), x, None, length=1000)[0]
    programs = {"a function of Numba's": loop(_op(_negative)), "scan without a callback": loop(jnp.negative)}
    programs["numpy_function"] = loop(numpy_negative())
    return compare_compiled("native, 1000 times in a scan", programs, jnp.ones(1), calls=3, samples=15)


def native_batches():
    like = jax.ShapeDtypeStruct((), jnp.int32)
    collatz = lambda n: np.int32(_collatz(int(n)))
    programs = {
        "a function of Numba's": jax.vmap(_op(_collatz, like)),
        "jax.pure_callback": jax.vmap(_pure(collatz, like)),
    }
    return compare_compiled("native, vmap over 1000 numbers", programs, jnp.arange(1, 1001), calls=3, samples=15)


def native_gradients():
    with_steps = _op(_energy_and_steps, (SCALAR, jax.ShapeDtypeStruct((9,), jnp.float32)), vjp=_force_of_steps)
    programs = {
        "a rule of Numba's": jax.grad(_op(_energy, SCALAR, vjp=_force)),
        "one that reads a result": jax.grad(lambda x: with_steps(x)[0]),
        "(fwd, bwd), by Python": jax.grad(_op(_energy, SCALAR, vjp=(_energy_and_steps, _force_of_residuals))),
        "jax.numpy": jax.grad(lambda x: jnp.sum((x[1:] - x[:-1]) ** 2)),
    }
    return compare_compiled("native, gradient, float32[10]", programs, jnp.linspace(0, 1, 10) ** 2)


def native_linear():
    programs = {
        "transpose= of Numba's": jax.grad(lambda x: jnp.sum(_op(_sums, transpose=_sums_transpose)(x) ** 2)),
        "jax.numpy": jax.grad(lambda x: jnp.sum(jnp.cumsum(x) ** 2)),
    }
    return compare_compiled("native, linear, gradient, float32[10]", programs, jnp.linspace(0, 1, 10))


def native_out():
    programs = {
        "out=True": _op(_fill, out=True, copy=False),
        "a returned array": _op(_negative, copy=False),
        "jit without a callback": jnp.negative,
    }
    return compare_compiled("native, float32[1000000]", programs, jnp.ones(1_000_000), calls=3, samples=15)


def native_devices():
    """On all devices at once. Start with XLA_FLAGS=--xla_force_host_platform_device_count=8 to have eight on a CPU."""
    devices = jax.device_count()
    mesh, spec = jax.make_mesh((devices,), ("a",)), PartitionSpec("a")
    run = _op(_negative)
    everywhere = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))
    x = jax.device_put(jnp.ones(devices), NamedSharding(mesh, spec))
    plain = jax.jit(jax.shard_map(jnp.negative, mesh=mesh, in_specs=spec, out_specs=spec))
    programs = {f"{devices} devices": lambda: everywhere(x), "the same without a callback": lambda: plain(x)}
    return compare("native, shard_map", programs)


_ALL = [native_calls, native_loops, native_batches, native_gradients, native_linear, native_out, native_devices]
GROUPS = _ALL if optional("numba") else []
