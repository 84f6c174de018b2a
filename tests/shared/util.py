"""Helpers that several test files share."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import os
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop

REPEAT = int(os.environ.get("JAXPYOP_TEST_REPEAT", "1"))  # 10 is the long form
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(jaxpyop.__file__)))


@dataclasses.dataclass(frozen=True)
class Route:
    """A way to run a program to its end."""

    name: str
    transport: str
    jit: bool

    def __call__(self, f, *args):
        out = (jax.jit(f) if self.jit else f)(*args)
        jax.block_until_ready(out)
        jax.effects_barrier()
        return out


ROUTES = {
    name: Route(name, transport, jit)
    for name, transport, jit in [
        ("direct", "auto", False),
        ("jit-auto", "auto", True),
        ("jit-callback", "callback", True),
    ]
}


close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)


def trees_close(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    jax.tree.map(close, got, wanted)


def run(f, *args):
    """The result of a program, or a body's own exception."""
    with jaxpyop.reraise():
        out = jax.block_until_ready(f(*args))
        jax.effects_barrier()
    return out


def py_function(func, inp, tout, **options):
    return jaxpyop.py_function(func, inp, tout, **options)


def numpy_function(func, inp, tout, **options):
    return jaxpyop.numpy_function(func, inp, tout, **options)


def py_func(func, inp, tout, **options):
    return jaxpyop.py_func(func, inp, tout, **options)


def contrib(func, inp, tout, **options):
    return jaxpyop.contrib.framework.py_func(func, inp, output_types=tout, **options)


# All four with one signature: f(func, inp, tout, **options).
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


def seen(route, api, arrays=(), inp=None, **options):
    """What a body of `api` is given: `arrays` as jit arguments, or `inp` from the code around."""
    got = []

    def body(*args):
        got.append(args)

    def program(*xs):
        return api(body, list(xs) if inp is None else inp, None, **options)

    assert route(program, *arrays) is None
    assert len(got) == 1, f"the body ran {len(got)} times"
    return got[0]


def dtype_id(value: Any) -> str:
    return np.dtype(value).name


class Body:
    """`affine`, counting its runs on values."""

    __name__ = "body"

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        if not isinstance(x, jax.core.Tracer):
            self.seen.append(np.array(x))
        return x * 2 + 1


class Counter:
    """A body that counts its runs and keeps what it saw; adds one to its input."""

    def __init__(self, func=lambda x: x + 1):
        self.func = func
        self.seen: list[Any] = []
        self.__name__ = "counter"

    def __call__(self, *args, **kwargs):
        self.seen.append([np.array(a) if hasattr(a, "dtype") else a for a in args])
        return self.func(*args, **kwargs)

    @property
    def count(self):
        return len(self.seen)


def freed(*refs):
    """Whether nothing holds them: XLA's threads let go of a program a moment after its results are there."""
    return eventually(lambda: all(ref() is None for ref in refs))


def eventually(holds, seconds=10):
    """Whether something holds within the time, garbage being collected meanwhile."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.001)
    return True


def held(ref):
    for _ in range(3):  # what a collected object held may be garbage only then
        gc.collect()
    return ref() is not None


def on_devices(count: int) -> dict[str, str]:
    """The environment of a process with so many devices, which compiles as this one does."""
    quickly = "JAX_DISABLE_MOST_OPTIMIZATIONS"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags} | ({quickly: os.environ[quickly]} if quickly in os.environ else {})


def run_python(code: str, timeout: float = 100, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; hanging or failing is an error with its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAXPYOP_", "XLA_FLAGS", "NPROC", "JAX_"))}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, clean.get("PYTHONPATH")]))
    clean |= {"JAX_PLATFORMS": "cpu", **env}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check:
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done


def load(path):
    """The module in a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
