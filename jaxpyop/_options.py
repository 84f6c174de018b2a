"""The keyword arguments of the public functions: the one table that signatures and `help()` are made from.

A keyword is an entry of a `TypedDict`, for editors and type checkers, with its default and its text in `help()`. To
add one: write it here, and read it in `Op`. `with_options` puts the entries of a table where a function says
``**options``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

from jaxpyop._config import Mode
from jaxpyop._host import Pool, VmapMethod
from jaxpyop._op import Casting

_Rule: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], Any]
_Pair: TypeAlias = tuple[Callable[..., Any], Callable[[Any, tuple[Any, ...]], Any]]
Vjp: TypeAlias = _Rule | _Pair | Literal["numerical"]  # of inputs, outputs, cotangents; or fwd and bwd
Jvp: TypeAlias = _Rule | Literal["numerical"]  # of inputs, outputs, tangents
Transpose: TypeAlias = Callable[[tuple[Any, ...]], Any]  # of cotangents
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Option(NamedTuple):
    """A keyword argument: its default, and what `help()` says of it."""

    default: Any
    text: str


_SHAPES = """a shape per leaf of `Tout`, in its structure, where
    ``None`` stands for an unknown dimension; or a function of the
    inputs' ``jax.ShapeDtypeStruct`` that returns that. Under ``jit``
    shapes that are not given are """


class _Everywhere(TypedDict, total=False):
    ordered: Annotated[bool, Option(False, "stateful, and in program order among ordered ops.")]
    when: Annotated[
        Any,
        Option(
            None,
            """a scalar boolean, traced or not: where it is false `func` is not
            called, and the results are zeros (a padded result is empty). Under
            ``vmap`` it decides for each element.""",
        ),
    ]
    vmap_method: Annotated[
        VmapMethod,
        Option(
            "sequential",
            """``"sequential"`` calls `func` per element;
            ``"expand_dims"`` and ``"broadcast_all"`` once per batch, as in
            :func:`jax.pure_callback`; ``"parallel"`` per element, several at once.
            With `ordered` the elements keep their order, one at a time.""",
        ),
    ]
    executor: Annotated[
        Pool | None,
        Option(
            None,
            """where `func` runs, and nowhere else: any ``concurrent.futures.Executor``,
            or a function that returns one. Without it `func` runs where it is called, and
            the elements of ``"parallel"`` on threads of jaxpyop's own. For processes
            `func` must be picklable, and what it does to its surroundings stays there.""",
        ),
    ]
    chunksize: Annotated[
        int | None,
        Option(
            None,
            """how many elements of a batch go to a worker of `executor` together. By
            default one at a time to threads, and to processes and machines as many
            as take about as long as it takes to send them.""",
        ),
    ]
    progress: Annotated[
        bool,
        Option(
            False,
            """show a progress bar for the batches of ``"sequential"`` and
            ``"parallel"`` (tqdm, the extra ``progress``).""",
        ),
    ]
    casting: Annotated[
        Casting,
        Option(
            "same_kind",
            """NumPy's casting rule from returned to promised floating and
            complex dtypes. Integers go to any integer dtype in which they fit.""",
        ),
    ]


class _OfJax(TypedDict, total=False):
    output_shapes: Annotated[
        Any,
        Option(
            None,
            _SHAPES
            + """found by evaluating `func` abstractly,
            and else assumed to be the inputs' broadcast shape.""",
        ),
    ]
    stateful: Annotated[bool, Option(False, "run exactly once per execution, even if the result is unused.")]


class JaxOptions(_OfJax, _Everywhere, total=False):
    """Those of ``py_function``."""

    vjp: Annotated[
        Vjp | None,
        Option(
            None,
            """reverse mode by a rule instead of what `func` did:
            ``f(inputs, outputs, cotangents)``, or a pair ``(fwd, bwd)``, or
            ``"numerical"``, as in :func:`numpy_function`, with
            ``jax.Array`` values. With a rule for one mode the other is an
            error where its result is used.""",
        ),
    ]
    jvp: Annotated[
        Jvp | None,
        Option(
            None,
            """forward mode by a rule: ``f(inputs, outputs, tangents)``, or
            ``"numerical"``, as in :func:`numpy_function`.""",
        ),
    ]
    mode: Annotated[
        Mode | None,
        Option(
            None,
            """``"eager"``, or ``"traced"``: under a transformation `func` is
            traced into the program instead of being called at run time, with
            an ``if`` on values as ``lax.cond`` and a ``while`` or ``for`` on
            values as a loop (that needs the extra ``loops`` and the source of
            `func`; without them paths are followed, up to 128, and loops on
            values are errors). No host call is left, XLA places the work, and
            `func` may use traced values of the code around it. It cannot use
            ``float(x)`` or NumPy, ``print`` in it happens once, when it is
            traced, and it has no side effects: `stateful` and `ordered` are
            errors. `vmap_method`, `executor` and `progress` have no part in
            it, and an integer dtype must fit by its range, as no value is
            known. ``"auto"``: traced where it can be, called where not,
            which is found once for each function and types of inputs; the
            logger ``jaxpyop`` says why (INFO). A side effect happens while
            JAX traces, unless the op is `stateful`. By default
            ``jaxpyop.config.mode``, which leaves stateful ops eager.""",
        ),
    ]
    max_steps: Annotated[
        int | None,
        Option(
            None,
            """for ``"traced"``: how many turns a loop on values in `func` may
            take, which its backward pass needs to know; it keeps the state at
            their beginnings, or of large states that of about
            ``2 * sqrt(max_steps)`` of them. A loop that takes more has the
            right value, and NaN for a gradient. Forward mode needs none.""",
        ),
    ]


class ContribOptions(_Everywhere, total=False):
    """Those of ``contrib.framework.py_func``."""

    vjp: Annotated[
        Vjp | None,
        Option(
            None,
            """reverse mode. ``f(inputs, outputs, cotangents)`` takes tuples of
            NumPy arrays and returns one cotangent per array input (in nested
            inputs: per array leaf, those of keyword arguments by sorted name),
            ``None`` for zero; shapes and dtypes are those of the inputs.
            Complex cotangents follow :func:`jax.vjp`. Or a pair, as in
            :class:`jax.custom_vjp`: ``fwd(*inputs)`` runs instead of `func` and
            returns ``(outputs, residuals)``, ``bwd(residuals, cotangents)`` one
            cotangent per array input; residuals are any object, and stay on the
            host, within the bounds of ``jaxpyop.config.max_records`` and
            ``max_record_bytes``. Or ``"numerical"``: central differences, one
            pair of calls of `func` per input element. Under the methods
            ``"expand_dims"`` and ``"broadcast_all"`` rules are called once per
            batch, with its axes in front. Without it a backward pass is an
            error. Second derivatives: :func:`jax.custom_jvp` around two ops.""",
        ),
    ]
    jvp: Annotated[
        Jvp | None,
        Option(
            None,
            """forward mode, as in :class:`jax.custom_jvp`:
            ``f(inputs, outputs, tangents)`` takes tuples of NumPy arrays, a
            tangent per array input or ``None`` for zero, and returns one
            tangent per result, ``None`` for zero. Or ``"numerical"``: one pair
            of calls of `func`. Without it forward mode is an error where its
            tangents are used.""",
        ),
    ]
    transpose: Annotated[
        Transpose | None,
        Option(
            None,
            """declares `func` linear in its floating and complex inputs:
            ``f(cotangents)`` takes a tuple with one cotangent per result and
            returns one per array input, ``None`` for zero. That gives both
            modes, to any order, and :func:`jax.linear_transpose`.""",
        ),
    ]
    copy: Annotated[
        bool,
        Option(
            True,
            """``False`` hands out read-only views without a copy, which must
            not be kept after the call.""",
        ),
    ]
    out: Annotated[
        bool,
        Option(
            False,
            """``True`` calls `func` with a keyword ``out``, as NumPy's functions have
            it: the results, in the structure of `Tout`, for `func` to fill and return
            nothing. They are zero at first, and where the program runs on one CPU device
            XLA's own memory: with ``copy=False`` nothing is copied at all. Their
            shapes must be known, outside ``jit`` too, and are found in the same way.
            Like lent inputs they must not be kept after the call.""",
        ),
    ]


class _OfNumpy(TypedDict, total=False):
    output_shapes: Annotated[
        Any,
        Option(
            None,
            _SHAPES
            + """assumed to be the inputs' broadcast
            shape, which is right for elementwise functions.""",
        ),
    ]


class NumpyOptions(_OfNumpy, ContribOptions, total=False):
    """Those of ``numpy_function`` and ``py_func``."""


@functools.cache
def _read(table: Any) -> dict[str, tuple[str, Option]]:
    """The options of a table, each with its type as it is written."""
    hints = typing.get_type_hints(table, include_extras=True)
    return {name: (_as_written(table.__annotations__[name]), hint.__metadata__[0]) for name, hint in hints.items()}


def _as_written(annotation: Any) -> str:
    # `Pool | None` says more than what it stands for.
    annotated: Any = ast.parse(annotation.__forward_arg__, mode="eval").body
    return ast.unparse(annotated.slice.elts[0])


def with_options(table: Any) -> Callable[[_Function], _Function]:
    """A decorator that spells out the `**options` of a function in its signature and its docstring."""

    def spell_out(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation)
            for name, (annotation, option) in _read(table).items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *listed])
        if function.__doc__ is not None:  # python -OO leaves none
            text = "\n".join(_entry(name, option.text) for name, (_, option) in _read(table).items())
            function.__doc__ = inspect.cleandoc(function.__doc__).replace("    **options: of the table.", text)
        return function

    return spell_out


def _entry(name: str, text: str) -> str:
    first, *rest = (line.strip() for line in text.splitlines())
    return "\n".join([f"    {name}: {first}", *(f"        {line}" for line in rest)])


def filled_in(table: Any, given: dict[str, Any], api: str) -> dict[str, Any]:
    """All options of a table: those that were given, and the defaults of the others.

    Raises:
        TypeError: a keyword that the function does not have.
    """
    if unknown := given.keys() - _read(table).keys():
        known = ", ".join(_read(table))
        raise TypeError(f"{api}() got an unexpected keyword argument {min(unknown)!r}; it has {known}")
    return _defaults(table) | given


@functools.cache
def _defaults(table: Any) -> dict[str, Any]:
    return {name: option.default for name, (_, option) in _read(table).items()}
