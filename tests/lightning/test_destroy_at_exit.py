import atexit
import sys

import pytest

from lightning_sm._lightning import collectives
from lightning_sm._lightning.collectives import destroy_at_exit
from tests.helpers.environ import torchrun


@pytest.fixture
def registered(monkeypatch):
    """What is registered to run at exit, in place of registering it."""
    pytest.importorskip("torch.distributed")  # torch registers things of its own when it is imported
    functions = []
    monkeypatch.setattr(collectives, "_registered", False)
    monkeypatch.setattr(atexit, "register", functions.append)
    return functions


def test_nothing_is_registered_without_torch(registered, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    destroy_at_exit()
    assert registered == []


def test_is_registered_once(registered):
    destroy_at_exit()
    destroy_at_exit()
    assert len(registered) == 1


def test_destroys_the_group(registered, in_environ):
    dist = pytest.importorskip("torch.distributed")
    in_environ(torchrun(0, 1, 0, 1, 0, MASTER_ADDR="127.0.0.1", MASTER_PORT=0))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    destroy_at_exit()
    assert dist.is_initialized()
    registered[0]()
    assert not dist.is_initialized()


def test_without_a_group_there_is_nothing_to_destroy(registered):
    dist = pytest.importorskip("torch.distributed")
    destroy_at_exit()
    registered[0]()
    assert not dist.is_initialized()
