"""The training script of the library, whose Hydra config makes the Trainer, its callbacks and averaged weights."""

import sys
from pathlib import Path

import nequip
import torch
from around import end
from omegaconf import OmegaConf

config = OmegaConf.load(Path(nequip.__file__).parent / "utils" / "unittests" / "minimal_toy_emt.yaml")
config.num_features, config.training_module.model.radial_mlp_width = 4, 8
config.training_module.model.num_layers = 1
config.data.split_dataset.dataset.supercell = [2, 2, 2]
config.data.train_dataloader = {"_target_": "torch.utils.data.DataLoader", "batch_size": 3, "shuffle": True}
config.trainer.max_epochs = 4
config.trainer.accelerator = "cpu"
config.trainer.enable_progress_bar = False
config.hydra = {"run": {"dir": "results"}}
OmegaConf.save(config, "config.yaml")
sys.argv = ["nequip-train", f"--config-path={Path.cwd()}"]
from nequip.scripts.train import main  # noqa: E402

main()
states = [torch.load(f"results/{name}.ckpt", weights_only=False)["state_dict"] for name in ("best", "last")]
end(*states)
