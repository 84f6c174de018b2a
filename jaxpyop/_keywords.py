"""The keyword arguments of the public functions: the tables that signatures and `help()` are made from.

A keyword is an entry of a `TypedDict`, for editors and type checkers, with its default. Its text in `help()` is in the
docstring of the table. To add a keyword, write it here, and name it in `Op`. `with_options` puts a table where a
function has ``**options``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypedDict, TypeVar

from jaxpyop._config import Mode
from jaxpyop._host import Pool, VmapMethod, Workers
from jaxpyop._op import numerical
from jaxpyop._values import Casting

# A rule takes inputs, outputs, and cotangents or tangents. A pair is fwd and bwd.
_Rule: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], Any]
_Pair: TypeAlias = tuple[Callable[..., Any], Callable[[Any, tuple[Any, ...]], Any]]
Vjp: TypeAlias = _Rule | _Pair | numerical
Jvp: TypeAlias = _Rule | numerical
# It takes cotangents.
Transpose: TypeAlias = Callable[[tuple[Any, ...]], Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _OfAll(TypedDict, total=False):
    """The options of all functions.

    Args:
        ordered: make the op stateful, and run all ordered ops in program order.
        when: a scalar boolean, traced or not. If it is false, `func` is not called
            and the results are zeros (a padded result is empty). Under ``vmap`` it
            decides for each element.
        vmap_method: how `func` is called under ``vmap``. ``"sequential"`` calls it once
            per element. ``"parallel"`` calls it for several elements at the same time.
            ``"expand_dims"`` and ``"broadcast_all"`` call it once per batch, as in
            :func:`jax.pure_callback`. With `ordered`, elements run one at a time, in
            batch order.
        executor: where `func` runs: any ``concurrent.futures.Executor``, a client of
            Dask's, the module ``ray``, or a function that returns one of these. By default
            `func` runs on the thread that calls it, and the elements of ``"parallel"``
            run there and on jaxpyop's own threads. For a pool of processes, `func` must
            be picklable, and its side effects stay in the worker process. With a list of
            ``n`` executors, element ``i`` of a batch runs on executor ``i % n``.
        casting: NumPy's casting rule for floating-point and complex results, from the
            returned dtype to the declared one. Integers may become any integer dtype
            that holds their values.
        on_error: what happens if `func` or a rule raises. ``"raise"`` raises. A number
            fills the results of the element that failed, and its derivatives are
            zero. ``"nan"`` fills them with NaN, and its derivatives are NaN. A pytree
            of numbers in the structure of `Tout` has a fill for each result. A warning,
            once per op, shows the first exception and its inputs. The shapes of the
            results must be known. Results that do not fit `Tout` are still an error,
            and interrupts are still raised. ``out=True`` does not work with it, nor
            does a `vmap_method` that calls `func` once per batch.
    """

    ordered: Annotated[bool, False]
    when: Annotated[Any, None]
    vmap_method: Annotated[VmapMethod, "sequential"]
    executor: Annotated[Pool | Workers | None, None]
    casting: Annotated[Casting, "same_kind"]
    on_error: Annotated[Any, "raise"]


class _OfJax(TypedDict, total=False):
    """Options that come first in ``py_function``.

    Args:
        output_shapes: the shapes of the results, in the structure of `Tout`. ``None``
            stands for an unknown dimension. A function of the inputs'
            ``jax.ShapeDtypeStruct`` may return the shapes. Under ``jit``, shapes that
            you do not specify are found by evaluating `func` abstractly. If that is
            impossible, the broadcast shape of the inputs is assumed, and checked.
        stateful: run `func` exactly once per execution, even if its result is unused.
    """

    output_shapes: Annotated[Any, None]
    stateful: Annotated[bool, False]


class JaxOptions(_OfJax, _OfAll, total=False):
    """The options of ``py_function``.

    Args:
        vjp: a rule for reverse mode, which replaces the automatic derivative, as in
            :func:`numpy_function`, but with ``jax.Array`` values. With `jvp` alone,
            reverse mode raises an error. With `vjp` alone, forward mode does, except with
            :class:`jaxpyop.numerical`.
        jvp: a rule for forward mode, which replaces the automatic derivative.
        mode: whether `func` is called, or becomes part of the program. The default is
            ``jaxpyop.config.mode``.

            - ``"eager"`` calls `func` when the program runs.
            - ``"traced"`` makes `func` part of the program under a transformation. An
              ``if`` on values becomes a ``lax.cond``, and a loop on values becomes a
              loop of the program. There is no host call, and XLA places the work.
            - ``"auto"`` traces `func` if possible, and calls it otherwise. It decides
              once for each function and the types of its inputs. The logger
              ``jaxpyop`` reports the reason at the level INFO.

            A traced `func` may use traced values of the enclosing code. It is not run,
            but interpreted, and must be written in a small part of Python, which the
            guide lists. It cannot use NumPy on traced values, and has no side effects.
            ``float(x)`` is a number without a derivative. A ``print`` in it prints while
            JAX traces, and cannot print a traced value.
            `vmap_method` and `executor` are ignored. The whole range of an
            integer result's dtype must fit into `Tout`.
            The source code of `func` must be in a file or in a notebook cell.
            ``jaxpyop.explain_traced(func, *args)`` says whether it can be traced.
        max_steps: the largest number of iterations of a traced loop on values. Reverse
            mode needs it, because it keeps the state of each iteration, or of about
            ``2 * sqrt(max_steps)`` of them if states are large. It does not stop the
            loop: a loop that takes more iterations has the right value, and NaN as its
            gradient. Forward mode does not need it.
    """

    vjp: Annotated[Vjp | None, None]
    jvp: Annotated[Jvp | None, None]
    mode: Annotated[Mode | None, None]
    max_steps: Annotated[int | None, None]


class ContribOptions(_OfAll, total=False):
    """The options of ``contrib.framework.py_func``.

    Args:
        vjp: the rule for reverse mode: ``f(inputs, outputs, cotangents)``; a pair
            ``(fwd, bwd)``, as in :class:`jax.custom_vjp`, whose residuals may be any
            objects; or :class:`jaxpyop.numerical`. `inputs` is the tuple of the arguments
            of `func`, in the order of its signature and each in its own structure;
            outputs and cotangents have the structure of `Tout`. The rule returns one
            entry for each argument, in its structure, with ``None`` for zero.
        jvp: the rule for forward mode: ``f(inputs, outputs, tangents)``, which returns
            tangents in the structure of `Tout`, or :class:`jaxpyop.numerical`.
        transpose: declares that `func` is linear in its floating-point and complex inputs.
            ``f(cotangents)`` returns what a `vjp` would. The op then has both modes, to
            any order, and works with :func:`jax.linear_transpose`.
        copy: ``False`` passes read-only views of the inputs to `func` instead of
            copies. `func` must not keep them after the call.
        out: ``True`` passes the results to `func` as the keyword argument ``out``, in
            the structure of `Tout`. `func` fills them and returns nothing. They are
            zero at first. If the program runs on one CPU device, they are XLA's own
            memory, and with ``copy=False`` nothing is copied. Their shapes must be
            known, even outside ``jit``. `func` must not keep them after the call.
    """

    vjp: Annotated[Vjp | None, None]
    jvp: Annotated[Jvp | None, None]
    transpose: Annotated[Transpose | None, None]
    copy: Annotated[bool, True]
    out: Annotated[bool, False]


class _OfNumpy(TypedDict, total=False):
    """Options that come first in ``numpy_function``.

    Args:
        output_shapes: the shapes of the results, in the structure of `Tout`. ``None``
            stands for an unknown dimension. A function of the inputs'
            ``jax.ShapeDtypeStruct`` may return the shapes. Under ``jit``, the broadcast
            shape of the inputs is assumed for shapes that you do not specify, and
            checked. It is right for elementwise functions.
    """

    output_shapes: Annotated[Any, None]


class NumpyOptions(_OfNumpy, ContribOptions, total=False):
    """The options of ``numpy_function`` and ``py_func``."""


# The docstrings with a table's texts, in the order of `help()`. Before Python 3.12 a TypedDict forgets its bases.
_DOCUMENTED_BY = {
    JaxOptions: (_OfJax, _OfAll, JaxOptions),
    ContribOptions: (_OfAll, ContribOptions),
    NumpyOptions: (_OfNumpy, _OfAll, ContribOptions),
}


DEFAULTS = {
    table: {name: hint.__metadata__[0] for name, hint in typing.get_type_hints(table, include_extras=True).items()}
    for table in _DOCUMENTED_BY
}


# ---------------------------------------------------------------- signatures and help()


def with_options(table: Any) -> Callable[[_Function], _Function]:
    """Make a decorator that puts a table in the place of ``**options``, in a function's signature and docstring."""

    def complete(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_written(table, name))
            for name, default in DEFAULTS[table].items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *listed])
        # python -OO leaves no docstrings.
        if function.__doc__ is not None:
            texts = [inspect.cleandoc(part.__doc__ or "").partition("Args:\n")[2] for part in _DOCUMENTED_BY[table]]
            doc = inspect.cleandoc(function.__doc__)
            function.__doc__ = doc.replace("    **options: as listed there.", "\n".join(texts))
        return function

    return complete


def _written(table: Any, name: str) -> str:
    # `Pool | None` tells a reader more than the types that it stands for.
    return table.__annotations__[name].__forward_arg__.removeprefix("Annotated[").rpartition(", ")[0]
