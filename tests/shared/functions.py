"""The four functions with one signature, `f(func, inp, tout, **options)`, and the dtypes that they are tested with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop

py_function, numpy_function, py_func = jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func


def contrib(func, inp, tout, **options):
    return jaxpyop.contrib.framework.py_func(func, inp, output_types=tout, **options)


APIS = {"py_function": py_function, "numpy_function": numpy_function, "py_func": py_func, "contrib": contrib}
NUMPY_APIS = {name: api for name, api in APIS.items() if name != "py_function"}
every_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
every_numpy_api = pytest.mark.parametrize("api", NUMPY_APIS.values(), ids=NUMPY_APIS)
both_sides = pytest.mark.parametrize("api", [py_function, numpy_function])

# Every dtype that JAX's CPU backend computes with (int1, uint1 and float6 it does not).
SMALL_DTYPES = """
    bool_ int2 int4 int8 int16 int32 uint2 uint4 uint8 uint16 uint32 bfloat16 float16 float32 complex64
    float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
    float8_e8m0fnu
"""
# JAX 0.10.0 garbles arrays of these on their way to any callback and back, unless they fill whole bytes.
GARBLED = [jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn] if jax.__version_info__ < (0, 10, 2) else []
SMALL_DTYPES = [dtype for name in SMALL_DTYPES.split() if (dtype := getattr(jnp, name)) not in GARBLED]
WIDE_DTYPES = [jnp.int64, jnp.uint64, jnp.float64, jnp.complex128]


def dtype_id(value):
    return np.dtype(value).name
