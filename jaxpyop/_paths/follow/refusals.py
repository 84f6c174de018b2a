"""What a traced value refuses, because only an array has it: a number, a text, a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxpyop import _jaxcore as core
from jaxpyop._paths.follow.number_types import DEPENDS_ON_PATH
from jaxpyop._paths.follow.tracer import PathTracer

_CONVERSIONS = {
    "__float__": "float(x)",
    "__int__": "int(x)",
    "__complex__": "complex(x)",
    "__index__": "operator.index(x)",
    "__array__": "np.asarray(x)",
    "item": "x.item()",
    "tolist": "x.tolist()",
    "tobytes": "x.tobytes()",
}


def _refusal(name: str, shown: str) -> Callable[..., Any]:
    fallback = getattr(core.Tracer, name, None)

    def refuse(self: PathTracer, *args: Any, **kwargs: Any) -> Any:
        # JAX itself tries a conversion and has another way if it fails: indexing tries operator.index.
        if fallback is not None and core.is_called_by_jax():
            return fallback(self, *args, **kwargs)
        return self._trace.run.stop(f"{shown} asks for the value of a traced {self.aval.str_short()}")

    refuse.__name__ = name
    return refuse


for _name, _shown in _CONVERSIONS.items():
    setattr(PathTracer, _name, _refusal(_name, _shown))


def _shown_refusal(name: str) -> Callable[..., Any]:
    fallback = getattr(core.Tracer, name)

    def refuse(self: PathTracer, *args: Any) -> Any:
        # Libraries show values in their errors and logs. The user's code may count the letters.
        if not core.is_called_by_user():
            return fallback(self, *args)
        return self._trace.run.stop(f"the text of a traced {self.aval.str_short()} is not known", _SHOW)

    refuse.__name__ = name
    return refuse


_SHOW = 'write jax.debug.print("{}", x) to look at it, or write mode="eager" to call the body at run time instead'
for _name in ("__repr__", "__str__", "__format__"):
    setattr(PathTracer, _name, _shown_refusal(_name))


# What an array has, and a traced value does not. Code may ask for it, and catch the `AttributeError`.
OF_ARRAYS = (
    "addressable_shards", "block_until_ready", "clone", "committed", "copy_to_host_async", "delete", "device",
    "devices", "format", "global_shards", "is_deleted", "is_fully_addressable", "is_fully_replicated", "is_ready",
    "on_device_size_in_bytes", "platform", "sharding", "traceback", "unsafe_buffer_pointer", "unsafe_raw_buffer",
)  # fmt: skip


def _refused_attribute(name: str) -> property:
    fallback = vars(core.Tracer).get(name)

    def get(self: PathTracer) -> Any:
        if core.is_called_by_user():
            self._trace.run.stop(f"x.{name} asks for what a traced {self.aval.str_short()} does not have")
        if fallback is None:
            raise AttributeError(name)
        return fallback.__get__(self)

    return property(get)


def _dtype(self: PathTracer) -> Any:
    if len({dtype for dtype, _ in self.number_types}) > 1 and core.is_called_by_user():
        self._trace.run.stop("x.dtype depends on the path: x is an int, a float or an array", DEPENDS_ON_PATH[1])
    return self.aval.dtype


PathTracer.dtype = property(_dtype)
for _name in OF_ARRAYS:
    setattr(PathTracer, _name, _refused_attribute(_name))
