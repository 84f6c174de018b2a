"""Several devices in one process: once on the whole array under `jit`, once per shard in a `shard_map`."""

import pytest

from tests.shared.many_programs import run_module
from tests.shared.processes import on_devices


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "transport", "modules"),
    [
        ("Auto", "auto", ["error", "jit", "shard_map", "shared_run"]),
        ("Explicit", "callback", ["error", "jit", "shard_map"]),
    ],
)
def test_programs_on_four_devices(kind, transport, modules):
    """Those of the modules `..._programs`, on a mesh of one kind."""
    run_module("tests.devices.four_devices", kind, transport, *modules, **on_devices(4))
