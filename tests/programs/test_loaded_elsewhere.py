"""Programs that this process saves and another one loads."""

import pytest

from tests.programs.saved_programs import save_all
from tests.shared.many_programs import run_module


@pytest.mark.slow
def test_another_process_gets_the_same(tmp_path):
    save_all(tmp_path)
    run_module("tests.programs.saved_programs", str(tmp_path))
