"""The clusters of the slow tests, which start once: their workers import JAX, and come back when they die."""

import warnings

import pytest

from tests.batches.programs import cluster_of


@pytest.fixture(scope="session")
def dask():
    pytest.importorskip("distributed", reason="needs the extra `dask`")
    # A local cluster closes the nanny of a worker that is not back by then.
    patient = pytest.importorskip("dask.config").set({"distributed.deploy.lost-worker-timeout": "1h"})
    with patient, cluster_of(4) as cluster, cluster.get_client() as client:
        yield client


@pytest.fixture(scope="session")
def ray():
    ray = pytest.importorskip("ray", reason="needs the extra `engines`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()
