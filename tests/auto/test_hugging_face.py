"""The page's example of a Hugging Face model, with a stand-in for ``transformers``."""

import os

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.docs.pages import ROOT, blocks
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import run_python

_STANDIN = '''
import os
from types import SimpleNamespace

import torch


class StandInModel(torch.nn.Module):
    """What the example uses of transformers.PreTrainedModel."""

    @classmethod
    def from_pretrained(cls, name, num_labels):
        return cls(num_labels)

    def __init__(self, num_labels):
        super().__init__()
        self.layer = torch.nn.Linear(16, num_labels)

    def forward(self, input_ids, labels):
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(self.layer(input_ids.float()), labels))

    def save_pretrained(self, folder):
        os.makedirs(folder, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(folder, "pytorch_model.bin"))
        open(os.path.join(folder, "config.json"), "w").close()


class StandInTokenizer:
    from_pretrained = classmethod(lambda cls, name: cls())

    def __call__(self, texts, padding, max_length, return_tensors):
        return {"input_ids": torch.ones(len(texts), max_length, dtype=torch.long)}

    def save_pretrained(self, folder):
        open(os.path.join(folder, "tokenizer.json"), "w").close()


AutoModelForSequenceClassification, AutoTokenizer = StandInModel, StandInTokenizer
'''


@pytest.mark.full
def test_the_weights_are_in_the_archive_once(tmp_path):
    (example,) = [block for block in blocks(ROOT / "docs" / "unchanged.md", "python") if "transformers" in block]
    (tmp_path / "train.py").write_text(example.replace("lightning.pytorch", installed_namespaces()[0].name))
    (tmp_path / "transformers.py").write_text(_STANDIN)
    done = run_python("train.py", folder=tmp_path, **OptMl(tmp_path / "opt-ml").host("algo-1").environ())
    assert sorted(os.listdir(tmp_path / "opt-ml" / "model")) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert "Exported nothing: the program has written pytorch_model.bin" in done.stderr
