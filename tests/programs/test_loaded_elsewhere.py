"""Programs that this process saves and another one loads."""

import json
import os
import sys

import jax
import numpy as np
import pytest

from tests.programs.saved_programs import PROGRAMS, outcome, save_all
from tests.shared.processes import run_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, request):
    """What each program that is tested gives in another process."""
    folder = str(tmp_path_factory.mktemp("saved"))
    # A doctest has no module.
    tests = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    save_all(folder, {test.callspec.params["name"] for test in tests})
    code = f"from tests.programs.saved_programs import load_all; print(load_all({folder!r}))"
    done = run_python(code, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_process_gets_the_same(name, loaded):
    program, found = PROGRAMS[name], loaded[name]
    expected = outcome(program.after(jax.jit(program.fun)), program)
    assert not isinstance(found, str), found
    for part in ("types", "structure", "notes"):
        assert found[part] == expected[part]
    for value, like in zip(found["values"], expected["values"], strict=True):
        np.testing.assert_allclose(value, like, rtol=1e-5, atol=1e-6)
