"""The keyword arguments of the public functions: the tables that signatures and `help()` are made from.

A keyword is an entry of a `TypedDict`, for editors and type checkers, with its default. Its text in `help()` is in the
docstring of the table. To add a keyword, write it here, and name it in `Op`. `with_options` puts a table where a
function has ``**options``, and copies the parts of a docstring that are the same for another function.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar

from jaxpyop._config import Mode
from jaxpyop._host import Pool, VmapMethod
from jaxpyop._op import Casting

# A rule takes inputs, outputs, and cotangents or tangents. A pair is fwd and bwd.
_Rule: TypeAlias = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], Any]
_Pair: TypeAlias = tuple[Callable[..., Any], Callable[[Any, tuple[Any, ...]], Any]]
Vjp: TypeAlias = _Rule | _Pair | Literal["numerical"]
Jvp: TypeAlias = _Rule | Literal["numerical"]
# It takes cotangents.
Transpose: TypeAlias = Callable[[tuple[Any, ...]], Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Everywhere(TypedDict, total=False):
    """The options of all functions.

    Args:
        ordered: make the op stateful, and run it in program order among all ordered
            ops.
        when: a scalar boolean, traced or not. Where it is false, `func` is not called
            and the results are zeros (a padded result is empty). Under ``vmap`` it
            decides for each element.
        vmap_method: ``"sequential"`` calls `func` once per element, and ``"parallel"``
            does so with several calls at once. ``"expand_dims"`` and
            ``"broadcast_all"`` call it once per batch, as in
            :func:`jax.pure_callback`. With `ordered` the elements are called in their
            order, one at a time.
        executor: where `func` runs, and nowhere else: any
            ``concurrent.futures.Executor``, or a function that returns one. By default
            `func` runs where it is called, and the elements of ``"parallel"`` run on
            jaxpyop's own threads. For a pool of processes `func` must be picklable,
            and its effects on Python objects stay in the other process.
        chunksize: how many elements of a batch a worker of `executor` gets at a time.
            By default one for threads. For processes and machines, as many as take
            about as long to compute as to send.
        progress: show a progress bar for the batches of ``"sequential"`` and
            ``"parallel"`` (needs tqdm, the extra ``progress``).
        casting: NumPy's casting rule, from returned to declared floating and complex
            dtypes. Integers go to any integer dtype in which their values fit.
    """

    ordered: Annotated[bool, False]
    when: Annotated[Any, None]
    vmap_method: Annotated[VmapMethod, "sequential"]
    executor: Annotated[Pool | None, None]
    chunksize: Annotated[int | None, None]
    progress: Annotated[bool, False]
    casting: Annotated[Casting, "same_kind"]


class _OfJax(TypedDict, total=False):
    """Options that come first in ``py_function``.

    Args:
        output_shapes: a shape per leaf of `Tout`, in its structure, where ``None``
            stands for an unknown dimension; or a function from the inputs'
            ``jax.ShapeDtypeStruct`` to such shapes. Under ``jit``, shapes that are not
            given are found by evaluating `func` abstractly. Where that is impossible,
            they are assumed to be the inputs' broadcast shape.
        stateful: run `func` exactly once per execution, even if its result is unused.
    """

    output_shapes: Annotated[Any, None]
    stateful: Annotated[bool, False]


class JaxOptions(_OfJax, _Everywhere, total=False):
    """The options of ``py_function``.

    Args:
        vjp: reverse mode by a rule, in place of differentiating the operations of
            `func`: ``f(inputs, outputs, cotangents)``, a pair ``(fwd, bwd)``, or
            ``"numerical"``, as in :func:`numpy_function` but with ``jax.Array``
            values. With a rule for one mode only, using the result of the other mode
            raises an error.
        jvp: forward mode by a rule: ``f(inputs, outputs, tangents)``, or
            ``"numerical"``, as in :func:`numpy_function`.
        mode: ``"eager"`` calls `func` when the program runs. ``"traced"`` traces it
            into the program instead, under a transformation: an ``if`` on values
            becomes ``lax.cond``, and a ``while`` or ``for`` on values becomes a loop.
            (That needs the extra ``loops`` and the source of `func`. Without them up
            to 128 paths are followed, and loops on values raise errors.) No host call
            is left, XLA places the work, and `func` may use traced values of the code
            around it. It cannot use ``float(x)`` or NumPy, a ``print`` in it happens
            once, while it is traced, and it has no side effects: `stateful` and
            `ordered` raise errors. `vmap_method`, `executor` and `progress` have no
            effect. The range of a returned integer dtype must fit the declared one,
            since no value is known. ``"auto"`` traces `func` where that is possible
            and calls it otherwise. It decides once for each function and types of
            inputs, and the logger ``jaxpyop`` tells why (INFO). Side effects happen
            while JAX traces, unless the op is `stateful`. The default is
            ``jaxpyop.config.mode``, which leaves stateful ops eager.
        max_steps: for ``"traced"``, the largest number of iterations of a loop on
            values in `func`. Reverse mode needs it: it keeps the state at the start
            of every iteration, or of about ``2 * sqrt(max_steps)`` of them if states
            are large. A loop that takes more iterations has the right value, and NaN
            as its gradient. Forward mode does not need it.
    """

    vjp: Annotated[Vjp | None, None]
    jvp: Annotated[Jvp | None, None]
    mode: Annotated[Mode | None, None]
    max_steps: Annotated[int | None, None]


class ContribOptions(_Everywhere, total=False):
    """The options of ``contrib.framework.py_func``.

    Args:
        vjp: the rule of reverse mode; without one a backward pass raises an error.
            ``f(inputs, outputs, cotangents)`` takes tuples of NumPy arrays, and
            returns one cotangent per array input, with its shape and dtype, or
            ``None`` for zero. (In nested inputs: one per array leaf, with keyword
            arguments sorted by name.) Complex cotangents follow :func:`jax.vjp`. Or a
            pair, as in :class:`jax.custom_vjp`: ``fwd(*inputs)`` runs instead of
            `func` and returns ``(outputs, residuals)``, and
            ``bwd(residuals, cotangents)`` returns one cotangent per array input.
            Residuals are any objects. They stay on the host, within the bounds of
            ``jaxpyop.config.max_records`` and ``max_record_bytes``. Or
            ``"numerical"``: central differences, with two calls of `func` per input
            element. With the methods ``"expand_dims"`` and ``"broadcast_all"`` a rule
            is called once per batch, with the batch axes in front. For second
            derivatives, put :func:`jax.custom_jvp` around two ops.
        jvp: the rule of forward mode, as in :class:`jax.custom_jvp`; without one, using
            a tangent raises an error. ``f(inputs, outputs, tangents)`` takes tuples of
            NumPy arrays, with one tangent per array input or ``None`` for zero, and
            returns one tangent per result, or ``None`` for zero. Or ``"numerical"``,
            with two calls of `func`.
        transpose: declares that `func` is linear in its floating and complex inputs.
            ``f(cotangents)`` takes a tuple with one cotangent per result, and returns
            one per array input, or ``None`` for zero. It gives both modes, to any
            order, and :func:`jax.linear_transpose`.
        copy: ``False`` hands `func` read-only views of its inputs without a copy. They
            must not be kept after the call.
        out: ``True`` calls `func` with a keyword ``out``, as NumPy's functions have it:
            the results, in the structure of `Tout`, for `func` to fill. It then
            returns nothing. They are zero at first. Where the program runs on one CPU
            device, they are XLA's own memory, and with ``copy=False`` nothing is
            copied at all. Their shapes must be known, outside ``jit`` too, and are
            found in the same way. They must not be kept after the call.
    """

    vjp: Annotated[Vjp | None, None]
    jvp: Annotated[Jvp | None, None]
    transpose: Annotated[Transpose | None, None]
    copy: Annotated[bool, True]
    out: Annotated[bool, False]


class _OfNumpy(TypedDict, total=False):
    """Options that come first in ``numpy_function``.

    Args:
        output_shapes: a shape per leaf of `Tout`, in its structure, where ``None``
            stands for an unknown dimension; or a function from the inputs'
            ``jax.ShapeDtypeStruct`` to such shapes. Under ``jit``, shapes that are not
            given are assumed to be the inputs' broadcast shape, which is right for
            elementwise functions.
    """

    output_shapes: Annotated[Any, None]


class NumpyOptions(_OfNumpy, ContribOptions, total=False):
    """The options of ``numpy_function`` and ``py_func``."""


# The docstrings with a table's texts, in the order of `help()`. Before Python 3.12 a TypedDict forgets its bases.
_DOCUMENTED_BY = {
    JaxOptions: (_OfJax, _Everywhere, JaxOptions),
    ContribOptions: (_Everywhere, ContribOptions),
    NumpyOptions: (_OfNumpy, _Everywhere, ContribOptions),
}


@functools.cache
def _defaults(table: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(table, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def filled_in(table: Any, given: dict[str, Any], function: Callable[..., Any], api: str) -> dict[str, Any]:
    """All options of a table: the given ones, and the defaults of the others.

    Raises:
        TypeError: `function`, which is called `api`, does not have one of the keywords.
    """
    if unknown := given.keys() - _defaults(table).keys():
        known = {name.lower(): name for name in inspect.signature(function).parameters}
        near = difflib.get_close_matches(min(unknown).lower(), known, n=1)
        meant = f"did you mean {known[near[0]]}?" if near else f"it has {', '.join(known.values())}"
        raise TypeError(f"{api}() got an unexpected keyword argument {min(unknown)!r}; {meant}")
    return _defaults(table) | given


# ---------------------------------------------------------------- signatures and help()


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def with_options(table: Any, like: Any = None) -> Callable[[_Function], _Function]:
    """Make a decorator that completes a function's signature and docstring.

    Args:
        table: the options that take the place of ``**options``.
        like: the function to copy parts of the docstring from. Where the decorated function has ``name: as in `f`.`` or
            a section of one line, ``As in `f`.``, that entry or section of `like` takes its place.
    """

    def complete(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        listed = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_as_written(table, name)
            )
            for name, default in _defaults(table).items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *listed])
        # python -OO leaves no docstrings.
        if function.__doc__ is not None:
            function.__doc__ = _completed(inspect.cleandoc(function.__doc__), table, like.__doc__ if like else "")
        return function

    return complete


def _as_written(table: Any, name: str) -> str:
    # `Pool | None` tells a reader more than the types that it stands for.
    annotated: Any = ast.parse(table.__annotations__[name].__forward_arg__, mode="eval").body
    return ast.unparse(annotated.slice.elts[0])


_ENTRY = re.compile(r"^    (?P<name>[\w*]+): .*\n(?:^        .*\n)*", re.MULTILINE)
_SECTION = re.compile(r"^(?P<name>\w+):\n(?:^(?:    .*)?\n)*?(?=^\w|\Z)", re.MULTILINE)


def _completed(doc: str, table: Any, model: str) -> str:
    texts = [_parts(_ENTRY, inspect.cleandoc(part.__doc__ or "")) for part in _DOCUMENTED_BY[table]]
    listed = "".join(text for part in texts for text in part.values())
    doc = f"{doc}\n".replace("    **options: as listed there.\n", listed)
    for pattern in (_ENTRY, _SECTION):
        doc = pattern.sub(functools.partial(_copied, _parts(pattern, model)), doc)
    return doc


def _copied(known: dict[str, str], found: re.Match[str]) -> str:
    return known[found["name"]] if re.fullmatch(r" *\w+:\s+[Aa]s in `\w+`\.\s+", found[0]) else found[0]


def _parts(pattern: re.Pattern[str], doc: str) -> dict[str, str]:
    return {found["name"]: found[0] for found in pattern.finditer(f"{doc}\n")}
