import sys

import pytest


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The class of a model in a project, whose folder is the working directory."""
    folder = tmp_path / "project"
    (folder / "served_parts").mkdir(parents=True)
    (folder / "served_parts" / "__init__.py").write_text("")
    (folder / "served_parts" / "blocks.py").write_text("import torch\nBlock = torch.nn.Dropout\n")
    (folder / "served_net.py").write_text(_NET)
    (folder / "never_imported.py").write_text("raise RuntimeError\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    from served_net import Served

    yield Served
    for name in [name for name in sys.modules if name.startswith("served_")]:
        del sys.modules[name]


_NET = """
import torch
from pytorch_lightning import LightningModule
from served_parts.blocks import Block

class Served(LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), Block(), torch.nn.Linear(width, 2))

    def forward(self, samples):
        return self.layers(samples)

    def training_step(self, batch, batch_index):
        return self(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Zoo:
    class Inner:
        class Net(Served):
            pass

def in_a_function():
    class Net(Served):
        pass
    return Net
"""
