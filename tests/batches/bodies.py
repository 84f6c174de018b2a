"""Functions at the top of a module, which workers in other processes can import."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxpyop


def draw(x):
    return x + jax.random.uniform(jax.random.key(0))


def through_numpy(x):
    return x * np.sin(x)


def settings(_):
    names = "jax_random_seed_offset", "jax_explicit_x64_dtypes"
    return [getattr(jax.config, name) for name in names], repr(jaxpyop.config)


def double(x):
    return x * 2


def fill_double(x, out):
    np.multiply(x, 2, out=out)


def product(x, y):
    return x * y


def cube(x):
    return x**3


def cube_vjp(inputs, outputs, cotangents):
    return 3 * inputs[0] ** 2 * cotangents


def branching_cube(x):
    """A cube that only the tape can differentiate."""
    return x**3 if float(x) > 0 else -(x**3)


def added_in_place(x, y):
    y += x
    return y


def both_are_read_only(x, y):
    return not (x.flags.writeable or y.flags.writeable)


def process_number(x):
    return np.int32(os.getpid())


def entry(x, table):
    assert type(table) is np.ndarray
    assert not table.flags.writeable
    return table[int(x)]


def slow_entry(x, table):
    time.sleep(0.5)
    return table[int(x)]


def slow_process_number(x):
    time.sleep(0.2)
    return process_number(x)


def scale(static, batch, *, by, unit):
    assert (static, unit) == ({"label": "metre", "parts": ("a", None)}, "m")
    return {"x": batch["x"] * by, "n": np.int32(batch["n"] + 1)}


def append_line(path, x):
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{float(x)}\n")
    return x


def fail_at_two(x):
    if x == 2:
        raise ValueError("two is too much")
    return x


def slow_unless_two(path, x):
    """Fails at once at 2; everything else takes a while, and says so when it is done."""
    if x == 2:
        raise ValueError("two is too much")
    time.sleep(0.2)
    return append_line(path, x)


class OddError(Exception):
    """It can be pickled, but not read again."""

    def __init__(self, how, odd):
        super().__init__(f"{how} {odd}")


def fail_oddly(x):
    raise OddError("too", "odd")


def die(x):
    os._exit(3)


def die_once(folder, x):
    """At 205 it dies the first time; each element that ends says so in a file of its own."""
    if x == 205 and not os.path.exists(f"{folder}/died"):
        open(f"{folder}/died", "w").close()
        os._exit(3)
    time.sleep(0.002)
    append_line(f"{folder}/{int(x)}", x)
    return x * 2


def die_at_five(x):
    if x == 5:
        os._exit(3)
    return x * 2


def die_at_five_vjp(inputs, outputs, cotangents):
    if inputs[0] == 5:
        os._exit(3)
    return 2 * cotangents


def double_vjp(inputs, outputs, cotangents):
    return 2 * cotangents


def say_and_die_at(path, at, x):
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{float(x)} {os.getpid()}\n")
    if x == at:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return x


def die_at_five_in_a_block(x):
    if (x == 5).any():
        os._exit(3)
    return x * 2


def die_at_five_by_a_signal(x):
    """As if memory ran out."""
    if x == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return x * 2


def exit_at_two(x):
    if x == 2:
        sys.exit("done")
    return x


def stop_at_two(x):
    return next(iter([x] if x != 2 else []))


def length(x):
    return np.int32(x.size)


def environment_variable(x):
    """Whether JAX is kept off other devices."""
    return x * (jax.config.jax_platforms == "cpu")


def hang_at_five(x):
    while x == 5:
        time.sleep(0.1)
    return x * 2


def say_and_hang(path, x):
    append_line(path, x)
    while True:
        time.sleep(0.1)


def wait_at_five(x):
    """It waits where only a signal reaches it."""
    if x == 5:
        threading.Event().wait()
    return x * 2


def hang_on(x):
    """It does not end by an exception."""
    while x == 5:
        with contextlib.suppress(Exception):
            time.sleep(0.1)
    return x * 2


def hold_the_lock(x):
    """It holds Python's lock, as compiled code does."""
    while x == 5:
        ctypes.PyDLL(None).sleep(1000)
    return x * 2


def locked():
    """A function that nobody can pickle."""
    lock = threading.Lock()

    def body(x):
        with lock:
            return x

    return body


@jaxpyop.numpy_function(Tout=jnp.float32)
def decorated(x):
    return x * 2


def bell(x):
    return jnp.sin(x) * x**3 / (1 + jnp.exp(-x))


def bell_in_a_checkpoint(x):
    """JAX compiles it as one function where it is not recorded."""
    return jax.checkpoint(bell)(x)
