"""The four functions with one signature, `f(func, inp, tout, **options)`, and the dtypes that they are tested with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop


def py_function(func, inp, tout, **options):
    return jaxpyop.py_function(func, inp, tout, **options)


def numpy_function(func, inp, tout, **options):
    return jaxpyop.numpy_function(func, inp, tout, **options)


def py_func(func, inp, tout, **options):
    return jaxpyop.py_func(func, inp, tout, **options)


def contrib(func, inp, tout, **options):
    return jaxpyop.contrib.framework.py_func(func, inp, output_types=tout, **options)


APIS = {"py_function": py_function, "numpy_function": numpy_function, "py_func": py_func, "contrib": contrib}
NUMPY_APIS = {name: api for name, api in APIS.items() if name != "py_function"}
every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
every_numpy_api = pytest.mark.parametrize("api", NUMPY_APIS.values(), ids=NUMPY_APIS)
both_sides = pytest.mark.parametrize("api", [py_function, numpy_function])

# Every dtype that JAX's CPU backend computes with (int1, uint1 and float6 it does not).
SMALL_DTYPES = [
    jnp.bool_,
    jnp.int2,
    jnp.int4,
    jnp.int8,
    jnp.int16,
    jnp.int32,
    jnp.uint2,
    jnp.uint4,
    jnp.uint8,
    jnp.uint16,
    jnp.uint32,
    jnp.float4_e2m1fn,
    jnp.float8_e3m4,
    jnp.float8_e4m3,
    jnp.float8_e4m3b11fnuz,
    jnp.float8_e4m3fn,
    jnp.float8_e4m3fnuz,
    jnp.float8_e5m2,
    jnp.float8_e5m2fnuz,
    jnp.float8_e8m0fnu,
    jnp.bfloat16,
    jnp.float16,
    jnp.float32,
    jnp.complex64,
]
# JAX 0.10.0 garbles arrays of these on their way to any callback and back, unless they fill whole bytes.
GARBLED = [jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn] if jax.__version_info__ < (0, 10, 2) else []
SMALL_DTYPES = [dtype for dtype in SMALL_DTYPES if dtype not in GARBLED]
WIDE_DTYPES = [jnp.int64, jnp.uint64, jnp.float64, jnp.complex128]


def dtype_id(value):
    return np.dtype(value).name
