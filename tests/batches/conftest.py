"""The clusters of the slow tests, which start once: their workers import JAX, and come back when they die."""

import warnings

import pytest

from tests.batches.programs import cluster_of, start_ray


@pytest.fixture(scope="session")
def dask():
    pytest.importorskip("distributed", reason="needs the extra `dask`")
    # A local cluster closes the nanny of a worker that is not back by then.
    patient = pytest.importorskip("dask.config").set({"distributed.deploy.lost-worker-timeout": "1h"})
    with patient, cluster_of(2) as cluster, cluster.get_client() as client:
        yield client


@pytest.fixture(scope="session")
def ray():
    pytest.importorskip("ray", reason="needs the extra `engines`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray = start_ray(2)
        yield ray
        ray.shutdown()
