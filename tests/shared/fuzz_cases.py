"""Random `Case`s for `test_fuzz`."""

from __future__ import annotations

import pathlib
from typing import Any

from hypothesis import strategies as st

from tests.shared.fuzz_programs import Case, Leaf, Output
from tests.shared.fuzz_stacks import FORWARD, REVERSE, TRANSFORMATIONS, TWICE

SHAPES = [(), (3,), (2, 3), (1,), (0,), (2, 0), (0, 3)]
NARROW = ["float16", "bfloat16"]
OTHERS = ["float32", *NARROW, "int8", "int16", "int32", "uint8", "bool", "complex64"]
WIDE = ["float64", "int64", "complex128", "uint32"]
STATIC = ["name", None, pathlib.PurePath("a"), len, b"bytes"]
JACOBIANS = ("jacrev", "jacfwd")


def _pick(draw: Any, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def _chance(draw: Any, of: int) -> bool:
    return draw(st.integers(1, of)) == of


# ---------------------------------------------------------------- inputs, outputs


def _shape(draw: Any, base: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to the base."""
    kept = base[draw(st.integers(0, len(base))) :]
    return tuple(1 if _chance(draw, 5) else n for n in kept)


def _leaves(draw: Any, work: str, x64: bool, uniform: bool) -> list[Leaf]:
    base = _pick(draw, *SHAPES)
    dtype = lambda: _pick(draw, work, work, *OTHERS, *(WIDE if x64 else ()))
    leaves = [Leaf("array", work if _chance(draw, 2) else dtype(), base)]
    for _ in range(draw(st.integers(0, 2))):
        leaves.append(Leaf("array", dtype(), base if uniform else _shape(draw, base)))
    for kind in draw(
        st.lists(st.sampled_from(["numpy", "number", "key", "moving key", "weak", "static", "static"]), max_size=2)
    ):
        if kind == "static":
            leaves.append(Leaf("static", static=_pick(draw, *STATIC)))
        elif kind == "numpy":
            leaves.append(Leaf("numpy", _pick(draw, *OTHERS, "float64", "int64"), base))
        elif not uniform:
            leaves.append(Leaf(kind, "uint32" if "key" in kind else _pick(draw, "float32", "int32", "bool"), ()))
    return leaves


def _structure(draw: Any, count: int) -> Any:
    parts = list(draw(st.permutations(range(count))))
    first, rest = parts[0], parts[1:]
    return _pick(
        draw,
        parts,
        parts,
        [{f"k{9 - k}": part for k, part in enumerate(parts)}],
        [first, {"rest": tuple(rest), "none": []}],
        [[first, [tuple(rest)]]],
        [first, *([tuple(rest)] if rest else [])],
    )


def _expression(draw: Any, leaves: list[int], depth: int) -> Any:
    shape = draw(st.integers(0, 3)) if depth else 0
    if shape == 0:
        return _pick(draw, *leaves)
    if shape == 1:
        if _chance(draw, 4):
            # Of an input alone: rounding does not decide.
            return (_pick(draw, "relu", "vmap relu"), _pick(draw, *leaves))
        unary = _pick(draw, "sin", "tanh", "square", "neg", "cos", "jit", "scan", "cond", "jit constant")
        return (unary, _expression(draw, leaves, depth - 1))
    pair = (_expression(draw, leaves, depth - 1), _expression(draw, leaves, depth - 1))
    return (_pick(draw, "add", "sub", "mul"), *pair)


def _output(draw: Any, leaves: list[Leaf], work: str, x64: bool, uniform: bool) -> Output:
    arrays = [k for k, leaf in enumerate(leaves) if leaf.kind != "static"]
    expr = _expression(draw, arrays, 2)
    if uniform:
        expr = ("add", expr, 0)  # what a block method calls returns the whole batch: it uses an input that has it
    forms = ["elementwise", "elementwise", "stack"] if uniform else ["elementwise", "sum", "last", "stack"]
    form = _pick(draw, *forms)
    kind = _pick(draw, "inexact", "inexact", "inexact", "int", "bool")
    python = kind != "inexact" and _chance(draw, 3)
    if kind == "bool":
        return Output(expr, form, "bool", "bool", python=python)
    if kind == "int":
        dtype = _pick(draw, "int8", "int16", "int32", "uint8", "float32", *(["int64", "uint32"] if x64 else []))
        return Output(expr, form, _pick(draw, "int16", "int32"), dtype, _chance(draw, 2), python)
    dtype = _pick(draw, work, work, work, "float32", *NARROW, "complex64", *(["float64", "complex128"] if x64 else []))
    loses = work.startswith("complex") and not dtype.startswith("complex")
    return Output(expr, form, work, dtype, cast=loses or _chance(draw, 2))


# -------------------------------------------------------------------------- stack


def _allowed(stack: list[str], name: str) -> bool:
    if name == "donating jit" and stack:
        return False  # its arguments are needed once more
    if name == "while_loop" and set(stack) & set(REVERSE):
        return False  # JAX has no reverse mode of it
    derived = [n for n in stack if n in (*REVERSE, *FORWARD)]
    if name in (*REVERSE, *FORWARD) and len(derived) == 2:
        return False
    if name in JACOBIANS and set(stack) & set(JACOBIANS):
        return False
    return not (name in TWICE and sum(n in TWICE for n in stack) == 3)


def _stack(draw: Any, is_numpy: bool, uniform: bool) -> list[tuple[str, Any]]:
    names: list[str] = []
    choices = [*TRANSFORMATIONS, "jit", "vmap", "grad"]
    choices = [n for n in choices if n not in FORWARD or not is_numpy or _chance(draw, 4)]
    for _ in range(_pick(draw, 4, 3, 2, 1, 0)):
        allowed = [name for name in choices if _allowed(names, name)]
        names.append(_pick(draw, *allowed))
    how = {
        "vmap": lambda: (7 if uniform else draw(st.integers(0, 7)), _pick(draw, 0, 0, -1)),
        "cond": lambda: _pick(draw, "value", "taken", "not taken"),
        "while_loop": lambda: _chance(draw, 2),
    }
    return [(name, how[name]() if name in how else None) for name in names]


def _options(draw: Any, api: str, uniform: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if api == "py_function" and _chance(draw, 3):
        return {"mode": "traced"}
    methods = ["sequential", "expand_dims", "broadcast_all"] if uniform else ["sequential", "sequential", "parallel"]
    method = _pick(draw, *methods)
    if method != "sequential":
        options["vmap_method"] = method
    if _chance(draw, 3):
        options["stateful"] = _chance(draw, 2)
    if _chance(draw, 8):
        options["ordered"] = True
    if api != "py_function" and _chance(draw, 4):
        options["copy"] = False
    return options


@st.composite
def cases(draw: Any, api: str | None = None) -> Case:
    """A random case, of one function or of any."""
    api = api or _pick(draw, "py_function", "numpy_function", "py_func", "contrib")
    x64, uniform = _chance(draw, 4), _chance(draw, 4)
    work = _pick(draw, "float32", "float32", "float32", *NARROW, "complex64", *(WIDE[::2] if x64 else ()))
    leaves = _leaves(draw, work, x64, uniform)
    count = draw(st.integers(1, 3))
    outputs = [_output(draw, leaves, work, x64, uniform) for _ in range(count)]
    options = _options(draw, api, uniform)
    branch = None
    if not uniform and _chance(draw, 2):
        branch = _pick(draw, "bool", "float", "item", "asarray", "loop", *(["bool"] * 12 * ("mode" in options)))
    stack = _stack(draw, api != "py_function", uniform)
    given = ["given", "given", "struct", "struct", "callable", "holes", "some", "absent", "absent"]
    if (api != "py_function" or branch not in (None, "bool")) and {n for n, _ in stack} & {*REVERSE, *FORWARD}:
        given = given[:5]  # a shape assumed wrongly is told at run time; a derivative may fail before
    return Case(
        api=api,
        leaves=tuple(leaves),
        inp=_structure(draw, len(leaves)),
        outputs=tuple(outputs),
        tout=_pick(draw, "list", "tuple", "dict", "nested", *(["alone"] * 4 if count == 1 else [])),
        shapes=_pick(draw, *given),
        branch=branch,
        stack=tuple(stack),
        options=tuple(options.items()),
        transport=_pick(draw, "auto", "auto", "callback"),
        x64=x64,
        vjp=not _chance(draw, 8),
        decorator=_chance(draw, 4),
        raises=_chance(draw, 20),
        records=_pick(draw, None, None, None, None, 1, 2),
    )
