"""Prints what our command line parses from the toolkit's arguments."""

import json
from typing import Any, Dict, Optional

import lightning.pytorch as pl

import lightning_sm


class Model(pl.LightningModule):
    def __init__(self, label: Optional[str] = "unset", mapping: Optional[Dict[str, Any]] = None):
        super().__init__()
        self.told = {"label": label, "mapping": mapping}


def main():
    cli = lightning_sm.SageMakerCLI(Model, run=False)
    print("parsed: " + json.dumps(cli.model.told), flush=True)


if __name__ == "__main__":
    main()
