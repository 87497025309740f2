"""A project with Fabric."""

from seen import arguments, write

folder, pl = arguments()

import importlib  # noqa: E402

import torch  # noqa: E402

from tests.helpers.tiny import loader, weights  # noqa: E402

name = "lightning.fabric" if pl.__name__.startswith("lightning.") else "lightning_fabric"
lightning_fabric = importlib.import_module(name)
logger = importlib.import_module(f"{name}.loggers").CSVLogger("logs")
fabric = lightning_fabric.Fabric(accelerator="cpu", loggers=logger)
fabric.launch()
torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
for inputs, targets in fabric.setup_dataloaders(loader()):
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
world = [fabric.world_size, getattr(fabric.strategy, "num_nodes", 1)]
write(folder, fabric.global_rank, world=world, weights=weights(model), logger=logger.root_dir)
