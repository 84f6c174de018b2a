"""Programs of this folder with four devices: `python -m tests.devices.four_devices Auto auto jit shard_map`."""

import importlib
import sys

import jaxpyop

import jax  # isort: skip

from tests.devices.common import PROGRAMS, Devices
from tests.shared import many_programs

if __name__ == "__main__":
    kind, jaxpyop._config.TRANSPORT, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(f"tests.devices.{module}_programs")
    assert len(jax.devices()) == 4
    many_programs.main(PROGRAMS, Devices(kind))
