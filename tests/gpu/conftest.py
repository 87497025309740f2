"""The device of these tests, and the parts that they play."""

import functools

import pytest
import torch

from tests.helpers.processes import Job


@pytest.fixture(params=["cuda", "cpu"])
def device(request):
    """A GPU, and the CPU, on which the same parts run without one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    return request.param


@pytest.fixture(scope="session")
def played(tmp_path_factory):
    """Return a function: what a part of ``train.py`` found in processes of its own, played once for all tests."""

    @functools.lru_cache(maxsize=None)
    def run(part, device, *words, world_size=1):
        accelerator = {"cuda": "gpu"}.get(device, device)
        variables = {"TESTS_ACCELERATOR": accelerator, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        job = Job(tmp_path_factory.mktemp(part), "tests.gpu.train", part, *words, timeout=500, **variables)
        results = job.torchrun(world_size, 1).results(world_size)
        return results if world_size > 1 else results[0]

    return run
