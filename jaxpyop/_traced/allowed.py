"""The functions and methods that a program may call without being interpreted.

Those of JAX, NumPy and of built-in types are names. To allow one more, add its name. It must be pure, must not keep
what it is given, and must not ask a traced value for its value.

Functions of Python that are written for traced numbers are the rows of `ROWS`. Each takes the machine, and then the
arguments that the program gives. A function of `math` is a row of `numbers`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop._traced.control import CONTROL
from jaxpyop._traced.operators import name_of_type, type_of
from jaxpyop._traced.values import *


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


_JNP = """
abs absolute add all allclose amax amin angle any append arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh
argmax argmin argsort array array_equal asarray astype atleast_1d atleast_2d average bfloat16 bincount bitwise_and
bitwise_not bitwise_or bitwise_xor bool_ broadcast_shapes broadcast_to cbrt ceil clip column_stack concatenate conj
convolve copysign corrcoef cos cosh count_nonzero cov cross cumprod cumsum deg2rad diag diagonal diff digitize divide
divmod dot einsum empty empty_like equal exp exp2 expand_dims expm1 eye fabs flip fliplr flipud float16 float32
float64 float_power floor floor_divide fmax fmin fmod full full_like geomspace gradient greater greater_equal
heaviside hstack hypot identity imag inner int16 int32 int64 int8 interp invert isclose iscomplex iscomplexobj
isfinite isinf isnan isreal isrealobj issubdtype kron less less_equal linspace log log10 log1p log2 logaddexp
logical_and logical_not logical_or logical_xor logspace matmul max maximum mean median meshgrid min minimum mod
moveaxis multiply nan_to_num nanmax nanmean nanmin nanstd nansum ndim negative not_equal ones ones_like outer pad
percentile permute_dims polyfit polyval positive power prod promote_types ptp quantile rad2deg ravel real reciprocal
remainder repeat reshape result_type rint roll rot90 round searchsorted select shape sign signbit sin sinc sinh
size sort split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace
transpose trapezoid tri tril triu trunc uint16 uint32 uint8 unwrap vander var vdot vstack where zeros zeros_like
"""
_LAX = """
abs acos add all_gather all_to_all argmax argmin asin associative_scan atan atan2 axis_index bitcast_convert_type
broadcast cbrt ceil clamp conv conv_general_dilated convert_element_type cos cosh cummax cummin cumprod cumsum
digamma div dot dot_general dynamic_index_in_dim dynamic_slice dynamic_slice_in_dim dynamic_update_index_in_dim
dynamic_update_slice dynamic_update_slice_in_dim eq erf erf_inv exp expand_dims expm1 floor full gather ge
gt integer_pow is_finite le lgamma log log1p logistic lt map max min mul ne neg pmax pmean pmin pow ppermute psum
reduce reduce_max reduce_min reduce_sum reduce_window rem reshape rev round rsqrt scan select sign sin sinh slice
slice_in_dim sort sqrt square squeeze stop_gradient sub tan tanh top_k transpose
"""
_NN = """
celu elu gelu glu hard_sigmoid hard_tanh leaky_relu log_sigmoid log_softmax logsumexp one_hot relu relu6 selu sigmoid
silu soft_sign softmax softplus standardize swish tanh
"""
_RANDOM = """
bernoulli beta categorical choice clone exponential fold_in gamma gumbel key key_data laplace multivariate_normal
normal permutation poisson PRNGKey rademacher randint split truncated_normal uniform wrap_key_data
"""
_LINALG = "cholesky cond det eigh eigvalsh inv lstsq matrix_power norm pinv qr slogdet solve svd"
_SPECIAL = "betainc digamma entr erf erfc erfinv expit gammaln i0 i1 log_ndtr logit logsumexp ndtr ndtri xlog1py xlogy"
_TREE = "all flatten leaves map reduce structure transpose unflatten"
_TREE_UTIL = "tree_map tree_leaves tree_flatten tree_unflatten tree_structure tree_reduce"
_JAX = "checkpoint device_put eval_shape grad hessian jacfwd jacrev jit jvp named_scope value_and_grad vjp vmap"
_NUMPY = """
arange array asarray bool_ complex128 complex64 cos exp eye finfo float16 float32 float64 full iinfo int16 int32 int64
int8 isfinite isinf isnan linspace log ones prod sin sqrt uint16 uint32 uint64 uint8 zeros
"""

_MODULES: tuple[tuple[types.ModuleType, str], ...] = (
    *((jnp, _JNP), (lax, _LAX), (jax.nn, _NN), (jax.random, _RANDOM), (jnp.linalg, _LINALG)),
    *((jax.scipy.special, _SPECIAL), (jax.tree, _TREE), (jax, _JAX)),
    (jax, "ShapeDtypeStruct linearize"),
    (jax.scipy.stats.norm, "cdf logcdf logpdf logsf pdf ppf sf"),
    (jax.dtypes, "canonicalize_dtype result_type"),
    (jax.scipy.linalg, "cho_factor cho_solve solve_triangular"),
    (jnp.fft, "fft ifft rfft irfft fftfreq"),
    (jax.tree_util, _TREE_UTIL),
)


def _named(module: Any, names: str) -> dict[int, Any]:
    """The functions of a module, by their ids.

    Raises:
        AttributeError: the module has no such function.
    """
    return {id(f): f for f in (getattr(module, name) for name in names.split())}


# By id, because some are compared in ways of their own. The functions are kept, so that no id is used again.
OF_JAX: dict[int, Any] = {key: f for module, names in _MODULES for key, f in _named(module, names).items()}
# Those, and JAX's loops, branches and prints.
KNOWN = OF_JAX | {id(f): f for f, _ in CONTROL} | {id(jax.debug.callback): jax.debug.callback}
# They may hand a number of Python on as it is.
OF_TREES = _named(jax.tree, _TREE) | _named(jax.tree_util, _TREE_UTIL) | _named(lax, "stop_gradient switch")
# They return a function. JAX keeps what it made of a function under `jit` or `checkpoint`.
TRANSFORMS = _named(jax, "checkpoint grad hessian jacfwd jacrev jit value_and_grad vmap")
# These may return a result of a function that they call as it is: a number of Python, where other functions of JAX
# return an array.
HANDS_ON = OF_TREES | TRANSFORMS | _named(jax, "jvp linearize vjp")
KEPT_BY_JAX = _named(jax, "checkpoint jit")
OF_NUMPY = _named(np, _NUMPY) | _named(jnp, "finfo iinfo")
OF_MATH: dict[int, Any] = {id(f): f for name, f in vars(math).items() if callable(f) and not name.startswith("_")}

METHODS: dict[type, frozenset[str]] = {
    jax.Array: _set("""
    all any argmax argmin argsort astype clip conj conjugate copy cumprod cumsum diagonal dot flatten item max mean min
    prod ravel repeat reshape round sort squeeze std sum swapaxes take tolist trace transpose var view
    """),
    At: _set("add apply divide get max min mul multiply power set"),
    list: _set("append clear copy extend index insert pop remove reverse sort"),
    dict: _set("copy get items keys setdefault update values"),
    str: _set("count endswith find format join lower lstrip replace rstrip split startswith strip title upper"),
    np.ndarray: _set("astype copy max mean min prod reshape std sum tolist var"),
}
DATA: tuple[tuple[Any, frozenset[str]], ...] = (
    (jax.Array, _set("T dtype imag itemsize mT nbytes ndim real shape size weak_type")),
    ((type, types.FunctionType), _set("__name__")),
    (enum.Enum, _set("name value")),
    (complex, _set("imag real")),
    ((np.ndarray, np.generic), _set("T dtype ndim shape size")),
    (np.dtype, _set("itemsize kind name")),
    ((np.finfo, np.iinfo, jnp.finfo, jnp.iinfo), _set("bits dtype eps max min smallest_normal tiny")),
)


# ------------------------------------------------------ functions that are written for traced numbers


def _of_list(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the items of something. A list whose length depends on values is taken apart first.

    Python computes the items of an iterator while the function runs, which nobody sees if they change nothing.
    """

    def of(m: Any, items: Any, args: Any, kwargs: Any) -> Any:
        with m.unchanged("an iterator"):
            items = m.iterate(items)
        return f(m, items, *args, **kwargs)

    return lambda m, it, *args, **kwargs: m.lifted(lambda i: of(m, i, args, kwargs), m.known_length(it))


def _sum(m: Any, items: Any, start: Any = 0) -> Any:
    alternatives = [x.alts if isinstance(x, Union) else [x] for x in (start, *items)]
    terms = [alts for alts in alternatives if any(is_scalar(x) and not (type(x) is int and x == 0) for x in alts)]
    is_traced = any(len(alts) > 1 or isinstance(alts[0], Num) for alts in terms)
    has_floats = any(is_scalar(x) and kind_of(x) == "f" for alts in terms for x in alts)
    if sys.version_info >= (3, 12) and len(terms) > 2 and is_traced and has_floats:
        raise Refused("sum() of floats, whose rounding Python makes up for", "write a loop, or use jnp.sum")
    known = next((i for i, x in enumerate(items) if not is_constant(x)), len(items))
    if is_constant(start):
        start, items = m.python(sum, items[:known], start), items[known:]
    for x in items:
        start = m.binary(ast.Add, start, x)
    return start


def _reduce(m: Any, f: Any, it: Any, *start: Any) -> Any:
    return m.python(functools.reduce, lambda a, b: m.call(f, [a, b], {}), itertools.chain(start, m.lazily(it)))


def _extreme(op: type) -> Callable[..., Any]:
    """`min` or `max`."""

    def of(m: Any, items: Any) -> Any:
        if not items:
            return m.python(max, ())
        return functools.reduce(lambda best, x: _one_of_two(m, op, best, x), items)

    return lambda m, *args: _of_list(of)(m, args[0]) if len(args) == 1 else of(m, args)


def _one_of_two(m: Any, op: type, old: Any, new: Any) -> Any:
    better = m.compare(op, new, old)
    if isinstance(better, Num) and is_scalar(old) and is_scalar(new) and kind_of(old) == kind_of(new):
        ends = map(min if op is ast.Lt else max, bounds(new), bounds(old))
        val = wide(lambda: jnp.where(better.val, raw(new), raw(old)))
        return Num(kind_of(new), val, *ends, flushed=flushed_of(new, old))
    return m.branch(m.truth(better), lambda: new, lambda: old)


def _sorted(m: Any, items: Any, reverse: Any = False, key: Any = None) -> Any:
    keys = items if key is None else tuple(m.call(key, [x], {}) for x in items)
    if any(is_array(x) or isinstance(x, Kind) for x in keys):
        raise Refused("sorted() of traced values", "use jnp.sort")
    m.need_constant(*keys, reverse)
    places = m.python(sorted, range(len(items)), key=keys.__getitem__, reverse=bool(reverse))
    return m.new_list(items[i] for i in places)


def _range(m: Any, *args: Any) -> Any:
    given = [of_array(a) if is_array(a) and a.dtype != bool else a for a in args]

    def of(*args: Any) -> Any:
        if not any(isinstance(a, Num) for a in args):
            m.need_constant(*args)
            return m.python(range, *args)
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if not isinstance(step, int) or step == 0 or any(kind_of(a) not in "bi" for a in args):
            raise Refused("a range with a traced step, or of what is no integer on each path", "write int(n)")
        return TracedRange(start, stop, step)

    return m.lifted(of, *given)


def _float(m: Any, v: Any) -> Any:
    if is_array(v):
        return m.number_of(v, "f")
    if isinstance(v, Num):
        return Num("f", raw(v, "f"), flushed=v.flushed)
    return m.of_constants(float, [v], {})


def _int(m: Any, v: Any, *rest: Any) -> Any:
    v = of_array(v) if is_array(v) and not rest else v
    if isinstance(v, Num) and not rest:
        return to_int(jnp.trunc, v)
    return m.of_constants(int, [v, *rest], {})


def _round(m: Any, v: Any, digits: Any = None) -> Any:
    if is_array(v):
        return m.python(round, v, *([] if digits is None else [digits]))
    if isinstance(v, Num) and digits is None:
        return to_int(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), v)
    return m.of_constants(round, [v, digits], {})


def _abs(m: Any, v: Any) -> Any:
    if isinstance(v, Num):
        if v.kind == "f":
            return Num("f", wide(lax.abs, raw(v)), flushed=v.flushed)
        lo, hi = bounds(v)
        return integer(wide(lax.abs, raw(v, "i")), max(0, lo, -hi), max(abs(lo), abs(hi)))
    return m.python(abs, v) if is_array(v) else m.of_constants(abs, [v], {})


def _isinstance(m: Any, v: Any, t: Any) -> Any:
    ts = t if isinstance(t, tuple) else (t,)
    if any(type(c) not in (type, type(jax.Array)) for c in ts):
        raise Refused("isinstance of a type that decides for itself")
    if is_array(v) and not all(c in (jax.Array, object) or module_of(c) in ("builtins", "numpy") for c in ts):
        raise Refused("isinstance of an array and a class that may be one of JAX's own", "write jax.Array")
    if not (is_array(v) or isinstance(v, (Num, Obj, tuple, list, dict)) or is_constant(v)):
        raise Refused(f"isinstance of a {name_of_type(v)}")
    return any(issubclass(type_of(v), c) for c in ts)


def _any(end: bool) -> Callable[..., Any]:
    return lambda m, v: m.lifted(lambda i: m.any_of(m.lazily(i), end), m.known_length(v))


def _reversed(m: Any, it: Any) -> Any:
    if isinstance(it, Obj) and it.cls is list:
        return Iter(m.of_list(it, len(m.items(it)) - 1, -1))
    if not isinstance(it, (tuple, range)) and not is_array(it):
        raise Refused(f"reversed() of a {name_of_type(it)}", "write list(...)")
    return Iter(iter(m.iterate(it)[::-1]))


def _zip(m: Any, *its: Any, strict: Any = False) -> Any:
    if strict and len({m.python(int, m.length(it)) for it in its}) > 1:
        raise PyRaise(ValueError("zip() of arguments of several lengths"))
    parts = [m.by_index(it) for it in its]
    item = lambda i: tuple(of(i) for _, of in parts)
    return Iter(zip(*map(m.lazily, its)), (min((length for length, _ in parts), default=0), item))


def _enumerate(m: Any, it: Any, start: Any = 0) -> Any:
    length, item = m.by_index(it)
    return Iter(enumerate(m.lazily(it), start), (length, lambda i: (m.binary(ast.Add, i, start), item(i))))


def _dict(m: Any, /, *args: Any, **kwargs: Any) -> Any:
    out = m.new_dict()
    m.dict_method(out, "update", args, kwargs)
    return out


def _replace(m: Any, obj: Any, /, **changes: Any) -> Any:
    cls = obj.cls if isinstance(obj, Obj) else type(obj)
    values = {f.name: m.get_attr(obj, f.name) for f in dataclasses.fields(cls) if f.init}
    return m.call(cls, [], {**values, **changes})


def _of_constants(f: Any) -> Callable[..., Any]:
    return lambda m, *args, **kwargs: m.of_constants(f, args, kwargs)


def _print(m: Any, *args: Any, **kwargs: Any) -> Any:
    if m.auto:
        raise Refused("print, which a program does not repeat when it runs again")
    return m.of_constants(print, args, kwargs)


def _one(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a value, for each alternative of that value."""
    return lambda m, v=0, /, *rest, **kwargs: m.lifted(lambda a: f(m, a, *rest, **kwargs), v)


def _hasattr(m: Any, v: Any, name: str) -> bool:
    if not (is_array(v) and name in ("dtype", "shape", "ndim", "size")) and not is_constant(v):
        raise Refused(f"hasattr(v, {name!r}) of a {name_of_type(v)}", "use isinstance")
    return is_array(v) or hasattr(v, name)


def _fold_in(m: Any, key: Any, data: Any) -> Any:
    is_number = isinstance(data, Num) and data.kind == "i"
    return m.call_jax(jax.random.fold_in, [key, num_as_dtype(data, np.dtype(np.uint32)) if is_number else data], {})


# One row for each function.
ROWS: list[tuple[Any, Callable[..., Any]]] = [
    *((sum, _of_list(_sum)), (min, _extreme(ast.Lt)), (max, _extreme(ast.Gt)), (sorted, _of_list(_sorted))),
    *((any, _any(True)), (all, _any(False)), (range, _range), (reversed, _reversed)),
    *((float, _one(_float)), (int, _one(_int)), (round, _one(_round)), (abs, _one(_abs))),
    *((zip, _zip), (dict, _dict), (functools.reduce, _reduce)),
    (dataclasses.replace, _one(_replace)),
    (map, lambda m, f, *its: Iter(map(lambda *xs: m.call(f, xs, {}), *map(m.lazily, its)))),
    (enumerate, _enumerate),
    (bool, lambda m, v=False: m.truth_value(v)),
    (len, lambda m, v: m.lifted(m.length, v)),
    (list, lambda m, v=(): m.lifted(lambda i: m.new_list(m.iterate(i)), m.known_length(v))),
    (tuple, lambda m, v=(): m.lifted(m.iterate, m.known_length(v))),
    *((isinstance, _one(_isinstance)), (hasattr, _one(_hasattr))),
    *((f, _of_constants(f)) for f in (str, repr, complex, ord, chr, frozenset, callable)),
    (pow, lambda m, a, b, *rest: m.of_constants(pow, [a, b, *rest], {}) if rest else m.binary(ast.Pow, a, b)),
    (itertools.product, lambda m, *its, repeat=1: Iter(itertools.product(*map(m.iterate, its), repeat=repeat))),
    (slice, lambda m, *ends: m.new_slice(*ends)),
    (functools.partial, lambda m, f, /, *args, **kwargs: Partial(f, tuple(args), kwargs)),
    (print, _print),
    (divmod, lambda m, a, b: (m.binary(ast.FloorDiv, a, b), m.binary(ast.Mod, a, b))),
    (itertools.pairwise, lambda m, it: Iter(itertools.pairwise(m.lazily(it)))),
    (itertools.chain, lambda m, *its: Iter(x for it in its for x in m.lazily(it))),
    (jax.random.fold_in, lambda m, key, data: m.lifted(lambda d: _fold_in(m, key, d), data)),
    (contextlib.nullcontext, lambda m, v=None: v),
    (functools.wraps, lambda m, f: Partial(contextlib.nullcontext, ())),
    *((f, lambda m, a, b, op=op: m.binary(op, a, b)) for op, f in PYTHON_OPS.items()),
    *((f, lambda m, a, b, op=op: m.compare(op, a, b)) for op, f in COMPARE.items()),
    (operator.neg, lambda m, v: m.unary(ast.USub, v)),
    (operator.getitem, lambda m, box, key: m.get_item(box, key)),
    (operator.index, _of_constants(operator.index)),
    *CONTROL,
]
BUILTINS = {id(f): row for f, row in ROWS}
