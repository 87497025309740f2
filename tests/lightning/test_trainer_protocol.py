import pytest

from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of, is_fast_dev_run


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=str)
def test_this_lightning_has_each_declared_attribute(namespace):
    trainer = namespace.module().Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    declared = {name for name in [*vars(Trainer), *Trainer.__annotations__] if not name.startswith("_")}
    assert {"global_step", "should_stop", "save_checkpoint"} <= declared
    assert declared <= set(dir(trainer))
    assert callbacks_of(trainer) is trainer.callbacks
    assert is_fast_dev_run(trainer) is False
