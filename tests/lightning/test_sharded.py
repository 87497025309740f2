from types import SimpleNamespace

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.strategies import bypasses_checkpoint_io, is_sharded

PL = Namespace("pytorch_lightning")


def test_lightnings_strategies_that_shard_a_model_and_their_subclasses():
    strategies = pytest.importorskip("pytorch_lightning.strategies", reason="Lightning 1.5 calls them plugins")
    for name in ("FSDPStrategy", "DDPFullyShardedNativeStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"):
        cls = getattr(strategies, name, None)
        if cls is not None:
            assert is_sharded(SimpleNamespace(strategy=cls.__new__(type("Own", (cls,), {}))))
    assert not is_sharded(SimpleNamespace(strategy=strategies.DDPStrategy.__new__(strategies.DDPStrategy)))


@pytest.mark.parametrize(
    ("name", "attributes", "bypasses"),
    [
        ("DDPStrategy", {}, False),
        ("FSDPStrategy", {"_state_dict_type": "full"}, False),
        ("FSDPStrategy", {"_state_dict_type": "sharded"}, True),
        ("ModelParallelStrategy", {"_save_distributed_checkpoint": False}, False),
        ("ModelParallelStrategy", {"_save_distributed_checkpoint": True}, True),
        ("DeepSpeedStrategy", {}, True),
    ],
)
def test_which_of_lightnings_strategies_write_folders(name, attributes, bypasses):
    strategies = pytest.importorskip("pytorch_lightning.strategies", reason="Lightning 1.5 calls them plugins")
    cls = getattr(strategies, name, None)
    if cls is None or (bypasses and PL.version < (2, 3) and name != "DeepSpeedStrategy"):
        pytest.skip("this Lightning has none, or none that shards its checkpoints")
    strategy = cls.__new__(type("Own", (cls,), {}))
    vars(strategy).update(attributes)
    assert bypasses_checkpoint_io(strategy) is bypasses
