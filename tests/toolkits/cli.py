"""Prints what a LightningCLI parses from the toolkit's arguments: Lightning's own as ``stock_cli.py``, else ours."""

import json
from typing import Any, Dict, Optional

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningCLI

IS_STOCK = "stock" in __file__


class Model(pl.LightningModule):
    def __init__(self, label: Optional[str] = "unset", mapping: Optional[Dict[str, Any]] = None):
        super().__init__()
        self.told = {"label": label, "mapping": mapping}


def main():
    if IS_STOCK:
        cli = LightningCLI(Model, run=False)
    else:
        import lightning_sm

        cli = lightning_sm.SageMakerCLI(Model, run=False)
    print("parsed: " + json.dumps(cli.model.told), flush=True)


if __name__ == "__main__":
    main()
