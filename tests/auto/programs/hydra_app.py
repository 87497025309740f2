"""A project with Hydra, which makes its Trainer from the config."""

from seen import arguments, of_trainer, write

folder, pl = arguments()

import hydra  # noqa: E402
from hydra.core.config_store import ConfigStore  # noqa: E402

from tests.helpers.tiny import loader, tiny_model, weights  # noqa: E402

config = {"_target_": f"{pl.__name__}.Trainer", "max_epochs": 1, "accelerator": "cpu"}
# Where Hydra makes several objects, the argument is a ListConfig.
config["callbacks"] = [{"_target_": f"{pl.__name__}.callbacks.ModelCheckpoint", "save_last": True}]
config["logger"] = [{"_target_": f"{pl.__name__}.loggers.CSVLogger", "save_dir": "logs"}]
ConfigStore.instance().store("train", {"trainer": config})


@hydra.main(version_base=None, config_name="train")
def main(cfg):
    trainer = hydra.utils.instantiate(cfg.trainer)
    model = tiny_model(pl)
    trainer.fit(model, loader())
    write(folder, trainer.global_rank, weights=weights(model), **of_trainer(trainer))


main()
