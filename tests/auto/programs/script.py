"""A project with argparse, as it runs on a laptop."""

from seen import arguments, of_trainer, write

folder, pl = arguments()

import argparse  # noqa: E402

from tests.helpers.tiny import loader, tiny_model, weights  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--fits", type=int, default=1)
parser.add_argument("--test-alone", action="store_true")
options = parser.parse_args()

for number in range(options.fits):
    model = tiny_model(pl)
    trainer = pl.Trainer(
        max_epochs=options.epochs,
        callbacks=[pl.callbacks.ModelCheckpoint(dirpath=f"checkpoints/fold{number}", monitor="train_loss")],
    )
    trainer.fit(model, loader())
seen = of_trainer(trainer)
rank = trainer.global_rank
if options.test_alone and rank == 0:
    alone = pl.Trainer(devices=1, num_nodes=1, logger=False, enable_progress_bar=False, enable_checkpointing=False)
    seen["tested"] = alone.test(model, loader(), verbose=False)
    seen["alone"] = of_trainer(alone)
write(folder, rank, weights=weights(model), **seen)
