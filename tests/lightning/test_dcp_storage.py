import pytest

from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.checkpoints import dcp_storage, has_dcp_storage

pytest.importorskip("torch.distributed.checkpoint", reason="torch has no DCP before 1.13")


@pytest.fixture(params=installed_namespaces(), ids=lambda namespace: namespace.name)
def fsdp(request):
    if not has_dcp_storage(request.param):
        pytest.skip("this Lightning saves no sharded checkpoints with DCP")
    return request.param, request.param.module("strategies.fsdp")


def test_lightning_saves_to_what_was_given(fsdp):
    namespace, module = fsdp
    before = module._distributed_checkpoint_save
    saved = []
    with dcp_storage(namespace, save=saved.append):
        module._distributed_checkpoint_save({"model": 1}, "a path")
        assert saved == [{"model": 1}]
    assert module._distributed_checkpoint_save is before


def test_the_storage_is_lightnings_again_after_an_error(fsdp):
    namespace, module = fsdp
    before = module._distributed_checkpoint_save
    with pytest.raises(OSError), dcp_storage(namespace, save=print):
        raise OSError
    assert module._distributed_checkpoint_save is before
