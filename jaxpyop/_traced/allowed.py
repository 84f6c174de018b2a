"""The functions and methods that a program may call without being interpreted: one name a function.

To allow one more function of these modules, add its name. It must be pure, must not keep what it is given, and must not
ask a traced value for its value. A function of Python that has to be written for traced numbers is a row of
`builtin_functions.ROWS`, and a function of `math` one of `numbers`.
"""

from __future__ import annotations

import enum
import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpyop._traced.values import At


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
broadcast cbrt ceil clamp cond conv conv_general_dilated convert_element_type cos cosh cummax cummin cumprod cumsum
digamma div dot dot_general dynamic_index_in_dim dynamic_slice dynamic_slice_in_dim dynamic_update_index_in_dim
dynamic_update_slice dynamic_update_slice_in_dim eq erf erf_inv exp expand_dims expm1 floor fori_loop full gather ge
gt integer_pow is_finite le lgamma log log1p logistic lt map max min mul ne neg pmax pmean pmin pow ppermute psum
reduce reduce_max reduce_min reduce_sum reduce_window rem reshape rev round rsqrt scan select sign sin sinh slice
slice_in_dim sort sqrt square squeeze stop_gradient sub switch tan tanh top_k transpose while_loop
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
_JAX = """
checkpoint device_put eval_shape grad hessian jacfwd jacrev jit jvp linearize named_scope ShapeDtypeStruct
value_and_grad vjp vmap
"""
_NUMPY = """
arange array asarray cos exp eye finfo float32 float64 full iinfo int32 int64 isfinite isinf isnan linspace log ones
prod sin sqrt zeros
"""

_MODULES: tuple[tuple[types.ModuleType, str], ...] = (
    *((jnp, _JNP), (lax, _LAX), (jax.nn, _NN), (jax.random, _RANDOM), (jnp.linalg, _LINALG)),
    *((jax.scipy.special, _SPECIAL), (jax.tree, _TREE), (jax, _JAX), (jax.debug, "print")),
    (jax.dtypes, "canonicalize_dtype result_type"),
    (jax.scipy.linalg, "cho_factor cho_solve solve_triangular"),
    (jnp.fft, "fft ifft rfft irfft fftfreq"),
    (jax.tree_util, "tree_map tree_leaves tree_flatten tree_unflatten tree_structure tree_reduce Partial"),
)


def _named(module: Any, names: str) -> dict[int, Any]:
    """The functions of a module, by their ids.

    Raises:
        AttributeError: the module has no such function.
    """
    return {id(f): f for f in (getattr(module, name) for name in names.split())}


# By id, because some are compared in ways of their own. The functions are kept, so that no id is used again.
OF_JAX: dict[int, Any] = {key: f for module, names in _MODULES for key, f in _named(module, names).items()}
# They may hand a number of Python on as it is.
OF_TREES = (
    _named(jax.tree, _TREE)
    | _named(jax.tree_util, "tree_map tree_leaves tree_flatten tree_unflatten tree_reduce")
    | _named(lax, "stop_gradient switch")
)
OF_NUMPY = _named(np, _NUMPY) | _named(jnp, "finfo iinfo")
OF_MATH: dict[int, Any] = {id(f): f for name, f in vars(math).items() if callable(f) and not name.startswith("_")}
# Functions of NumPy that call the method of the array that they are given, and so work on traced ones.
NUMPY_METHODS: dict[int, str] = {
    id(getattr(np, name)): name for name in _set("sum cumsum mean prod max min round std var argmax argmin")
}

METHODS: dict[type, frozenset[str]] = {
    jax.Array: _set("""
    all any argmax argmin argsort astype clip conj conjugate copy cumprod cumsum diagonal dot flatten item max mean min
    prod ravel repeat reshape round sort squeeze std sum swapaxes take trace transpose var view
    """),
    At: _set("add apply divide get max min mul multiply power set"),
    list: _set("append clear copy extend insert pop reverse"),
    dict: _set("copy get items keys pop update values"),
    str: _set("count endswith find format join lower lstrip replace rstrip split startswith strip title upper"),
    np.ndarray: _set("astype copy max mean min prod reshape std sum tolist var"),
    float: _set("is_integer"),
    int: _set("bit_length"),
}
DATA: tuple[tuple[Any, frozenset[str]], ...] = (
    (jax.Array, _set("T dtype imag itemsize mT nbytes ndim real shape size weak_type")),
    ((type, types.FunctionType), _set("__name__")),
    (enum.Enum, _set("name value")),
    ((np.ndarray, np.generic), _set("T dtype ndim shape size")),
    (np.dtype, _set("itemsize kind name")),
    ((np.finfo, np.iinfo, jnp.finfo, jnp.iinfo), _set("bits dtype eps max min smallest_normal tiny")),
    ((int, float, complex), _set("imag real")),
)

# What a class of which the program makes objects may not have, because the interpreter does not call it.
NOT_IN_CLASSES = _set("""
__new__ __del__ __getattribute__ __getattr__ __slots__ __iter__ __hash__ __set_name__ __array__ __jax_array__
__array_ufunc__ __array_priority__
""")
# What Python itself gives the class of a namedtuple.
GENERATED = _set("""
__new__ __repr__ __slots__ __doc__ __match_args__ __getnewargs__ __module__ __annotations__ __orig_bases__ __dict__
__annotate__ __static_attributes__ __firstlineno__ __annotate_func__ __annotations_cache__ __replace__ __weakref__
""")
