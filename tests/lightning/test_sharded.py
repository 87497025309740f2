from types import SimpleNamespace

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.strategies import bypasses_checkpoint_io, is_sharded

PL = Namespace("pytorch_lightning")


@pytest.mark.parametrize(
    ("name", "attributes", "bypasses"),
    [
        ("DDPStrategy", {}, False),
        ("DDPFullyShardedNativeStrategy", {}, False),
        ("FSDPStrategy", {"_state_dict_type": "full"}, False),
        ("FSDPStrategy", {"_state_dict_type": "sharded"}, True),
        ("ModelParallelStrategy", {"_save_distributed_checkpoint": False}, False),
        ("ModelParallelStrategy", {"_save_distributed_checkpoint": True}, True),
        ("DeepSpeedStrategy", {}, True),
    ],
)
def test_which_of_lightnings_strategies_shard_models_and_write_folders(name, attributes, bypasses):
    strategies = pytest.importorskip("pytorch_lightning.strategies", reason="Lightning 1.5 calls them plugins")
    cls = getattr(strategies, name, None)
    if cls is None:
        pytest.skip("this Lightning has none")
    strategy = cls.__new__(type("Own", (cls,), {}))
    vars(strategy).update(attributes)
    assert is_sharded(SimpleNamespace(strategy=strategy)) is (name != "DDPStrategy")
    if not bypasses or PL.version >= (2, 3) or name == "DeepSpeedStrategy":  # others shard no checkpoints before
        assert bypasses_checkpoint_io(strategy) is bypasses
