"""Several processes, joined by `jax.distributed` on the loopback interface."""

import concurrent.futures
import socket

import pytest

from tests.shared.many_programs import run_module
from tests.shared.processes import on_devices


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "transport"), [("Auto", "auto"), ("Explicit", "callback")])
def test_two_processes(kind, transport):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    run = lambda rank: run_module("tests.devices.two_processes", rank, port, kind, transport, **on_devices(2))
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(run, "01"))
