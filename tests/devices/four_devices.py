"""All programs of this folder for one process with four devices: `python -m tests.devices.four_devices Auto auto`."""

import sys

import jaxpyop

import jax  # isort: skip

from tests.devices import error_programs, jit_programs, shard_map_programs, shared_run_programs  # noqa: F401
from tests.devices.common import PROGRAMS, Devices
from tests.shared import many_programs

if __name__ == "__main__":
    kind, jaxpyop.config.transport = sys.argv[1:]
    assert len(jax.devices()) == 4
    many_programs.main(PROGRAMS, Devices(kind))
