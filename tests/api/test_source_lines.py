"""What JAX shows as an op's place is the user's line, and none of ours."""

from __future__ import annotations

import os
import re

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import print_saved_residuals

from tests.shared.util import ROOT, every_api, py_function

F = jnp.float32
USERS = os.path.join(ROOT, "tests", "")
OURS = os.path.join(ROOT, "jaxpyop", "")


def _jaxpr(f):
    return jax.make_jaxpr(f)(1.0).pretty_print(source_info=True)


def _hlo(f):
    return _unescaped(jax.jit(f).lower(1.0).as_text(debug_info=True), r"\\([0-9A-F]{2})", 16)


def _compiled(f):
    return _unescaped(jax.jit(f).lower(1.0).compile().as_text(), r"\\([0-7]{3})", 8)


def _unescaped(text, escape, base):
    """The text with the letters in it that are not ASCII, of which XLA writes the bytes."""
    found = re.sub(escape.encode(), lambda byte: bytes([int(byte[1], base)]), text.encode())
    return found.decode(errors="replace")


SHOWN = {"jaxpr": _jaxpr, "lowered": _hlo, "compiled": _compiled}
every_view = pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)


@every_view
@every_api
def test_an_op(api, shown):
    text = shown(lambda x: api(lambda v: v, [x], F))
    assert OURS not in text
    assert USERS in text


@every_view
@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_gradient(mode, shown):
    text = shown(jax.grad(lambda x: py_function(lambda v: jnp.sin(v) if v > 0 else v, [x], F, mode=mode)))
    assert OURS not in text
    assert USERS in text


def test_saved_residuals(capsys):
    print_saved_residuals(lambda x: py_function(jnp.sin, [x * 2], F) * 3, 1.0)
    shown = capsys.readouterr().out
    assert "python_call" in shown
    assert OURS not in shown
