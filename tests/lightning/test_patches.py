"""The table of patches tells of functions that are there; one patch in a process of its own."""

import importlib

import pytest

from lightning_sm._lightning import SupportLevel, installed_namespaces, support_level
from lightning_sm._lightning.patches import PATCHES
from tests.helpers.fresh import run_fresh


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.function)
def test_each_patch_is_a_function_with_a_link_and_an_end(patch):
    module, _, name = patch.function.partition(".")
    assert callable(getattr(importlib.import_module(f"lightning_sm._lightning.{module}"), name))
    assert patch.link.startswith("https://github.com/")
    assert patch.replaced
    assert patch.versions
    assert patch.ends


@pytest.mark.full
def test_infinite_barrier_makes_no_group_beside_smddp_and_stays_elsewhere():
    namespace = installed_namespaces()[0]
    if support_level(namespace) is not SupportLevel.FULL:
        pytest.skip("Lightning before 2.3 has no infinite barrier")
    said = run_fresh(
        f"""
        import torch.distributed as dist
        import {namespace.name}
        from {namespace.fabric}.utilities.distributed import _InfiniteBarrier as Barrier
        from lightning_sm._lightning import Namespace
        from lightning_sm._lightning.strategies import replace_infinite_barrier
        for _ in range(2):
            replace_infinite_barrier(Namespace("{namespace.name}"))
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with Barrier() as barrier:
            say("gloo", barrier.group is None)
        dist.get_backend = lambda: "smddp"
        with Barrier() as barrier:
            say("smddp", barrier.group is None, barrier.barrier is dist.barrier)
        dist.destroy_process_group()
        """
    )
    assert said == [["gloo", False], ["smddp", True, True]]
