import pytorch_lightning as pl

from lightning_sm._agree import all_true, any_true, broadcast


def test_a_single_process_agrees_with_itself():
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    assert broadcast(trainer, {"name": "last.ckpt"}) == {"name": "last.ckpt"}
    assert all_true(trainer, True)
    assert any_true(trainer, True)
    assert not all_true(trainer, False)
    assert not any_true(trainer, False)
