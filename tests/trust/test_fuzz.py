"""Random programs give what plain JAX gives, or an error that the contract expects.

JAXPYOP_TEST_EXAMPLES=2000 is the long form: as many random programs, other
ones each time. A failing one is printed whole.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import jaxpyop
from tests.shared.fuzz_cases import cases
from tests.shared.fuzz_programs import Boom, Case, arguments, operation, reference
from tests.shared.fuzz_stacks import FORWARD, REVERSE, STAGING, TWICE, is_inexact, is_key, stacked
from tests.shared.util import APIS, run

LONG = "JAXPYOP_TEST_EXAMPLES" in os.environ
EXAMPLES = int(os.environ["JAXPYOP_TEST_EXAMPLES"]) // len(APIS) if LONG else settings.default.max_examples // 2

# ------------------------------------------------------------------ expectations

DERIVATIVES = (*REVERSE, *FORWARD)
ONCE = ("jit", "donating jit", "grad", "value_and_grad")  # run the rest of the stack once


def expected_errors(case: Case) -> tuple[list[str], bool]:
    """Texts of the errors that the contract has for a case, and whether one must come."""
    found = [*_body_errors(case), *_shape_errors(case)]
    if not case.traced:
        found += [*_derivative_errors(case), *_effect_errors(case)]
    # With a shape assumed wrongly all results may be empty, and XLA leaves the call out.
    must = any(must for _, must in found) and not any("output_shapes=" in text for text, _ in found)
    return [text for text, _ in found], must


def _body_errors(case: Case) -> Any:
    inert = () if any(map(is_inexact, arguments(case))) else DERIVATIVES  # of integers there is none to take
    staged = case.traced and bool(set(case.names) - set(inert))
    if staged and case.branch in ("float", "item", "asarray", "loop"):
        yield "asks for the value", True
    if staged and any(o.python for o in case.outputs):
        yield "asks for the value", False
    if staged and any(_narrows(o) for o in case.outputs):
        yield "whose values may not fit", True
    if case.raises:
        always = not set(case.names) - {"jit", "donating jit", "vmap", "scan", "scan xs", "map", "value_and_grad"}
        sizes = [s.size for s in jax.tree.leaves(shapes_of(case))]
        yield ("a path raises Boom" if staged else "boom"), bool(staged or (always and (case.stateful or any(sizes))))


def _narrows(output: Any) -> bool:
    work, dtype = np.dtype(output.work), jnp.dtype(output.dtype)
    return not output.cast and output.kind == "int" and dtype.kind in "iu" and not np.can_cast(work, dtype, "safe")


def shapes_of(case: Case) -> Any:
    return jax.eval_shape(reference(case), arguments(case))


def _shape_errors(case: Case) -> Any:
    """Where a shape is not given, under jit, and cannot be found."""
    if case.traced or case.shapes not in ("absent", "holes", "some") or not set(case.names) & set(STAGING):
        return
    looks = any(o.python for o in case.outputs)
    if case.on_jax and not case.stateful and case.branch in (None, "bool") and not case.raises and not looks:
        return  # the body is evaluated abstractly
    inputs = [
        () if leaf.is_key or leaf.kind == "number" else leaf.shape for leaf in case.leaves if leaf.kind != "static"
    ]
    assumed = np.broadcast_shapes(*inputs)
    if any(s.shape != assumed for s in jax.tree.leaves(shapes_of(case))):
        yield "output_shapes=", False


def _derivative_errors(case: Case) -> Any:
    derived = [name for name in case.names if name in DERIVATIVES]
    moves = any(map(is_inexact, arguments(case)))
    if not derived or not moves:
        return
    certain = "cond" not in case.names and all(name in ("grad", "value_and_grad", "jvp") for name in derived)
    certain = certain and any(s.size and is_inexact(s) for s in jax.tree.leaves(shapes_of(case)))
    if not case.on_jax:
        if set(derived) & set(FORWARD):
            yield "forward-mode differentiation", certain and len(derived) == 1
        if len(derived) > 1:
            yield "second derivatives need a body of JAX operations", certain
        if set(derived) & set(REVERSE) and not case.vjp:
            yield "a backward pass needs the gradient", certain
        return
    if case.stateful and case.records is not None:
        yield "the record of this step's forward pass is gone", False
    if case.stateful and len(derived) > 1:
        yield "a second derivative runs func again", certain


def _inside(case: Case, inner: str, outer: Any) -> bool:
    return any(a in outer and inner in case.names[k + 1 :] for k, a in enumerate(case.names))


def _effect_errors(case: Case) -> Any:
    if not case.stateful:
        return
    if _inside(case, "checkpoint", DERIVATIVES):
        yield "stateful=False", False
    if _inside(case, "cond", ("vmap", "jacrev", "jacfwd")):
        yield "stateful=False", _inside(case, "cond", ("vmap",))
    if _inside(case, "while_loop", ("vmap", "jacrev", "jacfwd")):
        ordered = dict(case.options).get("ordered", False)
        if ordered or any(name == "while_loop" and value for name, value in case.stack):
            yield "stateful=False", ordered and _inside(case, "while_loop", ("vmap",))


def expected_runs(case: Case) -> int | None:
    """How often the body of a stateful op, or of a direct call, runs."""
    if case.traced or not (case.stateful or not case.stack) or set(case.names) - {*ONCE, *TWICE}:
        return None
    if ("while_loop", True) in case.stack:
        return None
    block = dict(case.options).get("vmap_method") in ("expand_dims", "broadcast_all")
    if block and set(case.names) & set(DERIVATIVES):
        return None  # a differentiated batch is looped over
    return 2 ** sum(name in TWICE for name in case.names if not block or name != "vmap")


# -------------------------------------------------------------------- comparison

DIGITS = {"float16": 2e-2, "bfloat16": 1.5e-1, "float32": 1e-4, "complex64": 1e-4, "float64": 1e-9, "complex128": 1e-9}


def tolerance(case: Case) -> float:
    used = {leaf.dtype for leaf in case.leaves} | {o.dtype for o in case.outputs} | {o.work for o in case.outputs}
    return max(DIGITS.get(dtype, 0) for dtype in used)


def without_key(x: Any) -> Any:
    return jax.random.key_data(x) if is_key(x) else x


def assert_same(got: Any, wanted: Any, tolerance: float) -> None:
    """Structure, shapes, dtypes, weak types and values."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(map(without_key, jax.tree.leaves(got)), map(without_key, jax.tree.leaves(wanted))):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        if not is_inexact(a):
            np.testing.assert_array_equal(a, b)
            continue
        wide = np.complex128 if jnp.iscomplexobj(b) else np.float64
        x, y = np.asarray(a).astype(wide), np.asarray(b).astype(wide)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max(initial=0)))


@contextlib.contextmanager
def settings_of(case: Case) -> Any:
    chosen = {"transport": case.transport} | ({} if case.records is None else {"max_records": case.records})
    with jaxpyop.config.override(**chosen), jax.enable_x64(case.x64):
        yield


TIMES = 3  # derivatives are compiled when they come back


def check(case: Case) -> str | None:
    """Run a case; the text of the error, if that is what it should give."""
    with settings_of(case):
        texts, must = expected_errors(case)
        ran: list[int] = []
        program = stacked(operation(case, ran), case.stack)
        try:
            results = [run(program, arguments(case)) for _ in range(TIMES)]
        except Exception as error:
            if not texts:
                raise
            assert_is_ours(error, case, texts)
            assert_next_call_works(case)
            return str(error)
        assert not must, f"no error; expected {texts}"
        if "output_shapes=" not in texts:
            wanted = stacked(reference(case), case.stack)(arguments(case))
            for got in results:
                assert_same(got, wanted, tolerance(case))
        runs = expected_runs(case)
        assert runs is None or len(ran) == TIMES * runs, f"the body ran {len(ran)} times; expected {TIMES} * {runs}"
        return None


def assert_is_ours(error: BaseException, case: Case, texts: list[str]) -> None:
    """An error begins with the op's name, and says what to write."""
    if isinstance(error, Boom):
        assert "boom" in texts
        return
    text = str(error)
    assert any(part in text for part in texts), f"expected one of {texts}"
    assert text.startswith(case.title) or f"the stateful {case.title}" in text


def assert_next_call_works(case: Case) -> None:
    api = APIS[case.api]
    got = jax.jit(lambda x: api(lambda x: x * 2, [x], jnp.float32))(jnp.arange(3.0, dtype=jnp.float32))
    np.testing.assert_array_equal(got, [0, 2, 4])


# -------------------------------------------------------------------------- tests


# Shrinking a program takes minutes of compilation, and does not make it much shorter.
@pytest.mark.timeout(120 + 3 * EXAMPLES)
@pytest.mark.parametrize("api", APIS)
@settings(
    max_examples=EXAMPLES, derandomize=not LONG, print_blob=LONG, phases=[Phase.generate], report_multiple_bugs=False
)
@given(data=st.data())
def test_random_programs_equal_plain_jax(api, data):
    check(data.draw(cases(api)))
