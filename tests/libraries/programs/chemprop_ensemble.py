"""The command line of the library, which trains an ensemble, one trainer after another."""

import sys

import numpy
import pandas
import torch
from around import end
from chemprop.cli.main import main

smiles = ["C" * length + end for length in range(1, 21) for end in ("O", "N", "C(=O)O", "Cl", "c1ccccc1")]
targets = numpy.random.default_rng(0).normal(size=100) + numpy.arange(100) / 20
pandas.DataFrame({"smiles": smiles, "y": targets}).to_csv("data.csv", index=False)
options = {
    "-i": "data.csv", "--smiles-columns": "smiles", "--target-columns": "y", "-o": "out", "--epochs": "4",
    "--ensemble-size": "2", "--batch-size": "16", "--pytorch-seed": "3", "--accelerator": "cpu",
    "--message-hidden-dim": "16", "--ffn-hidden-dim": "16", "--warmup-epochs": "1",
}  # fmt: skip
sys.argv = ["chemprop", "train", *(word for option in options.items() for word in option)]
main()
end(*(torch.load(f"out/model_{i}/best.pt", weights_only=False)["state_dict"] for i in range(2)))
