"""Writes a trained model into the model directory, in one of several formats, whole or not at all."""

from lightning_sm._export._best import BestCheckpoint, find_best, why_not_best
from lightning_sm._export._check import check_model
from lightning_sm._export._directory import check_writable
from lightning_sm._export._example import Example
from lightning_sm._export._example_finder import ExampleFinder
from lightning_sm._export._files import load_file
from lightning_sm._export._formats import FORMATS
from lightning_sm._export._hparams import as_json_values, saved_hparams, values_for_json
from lightning_sm._export._make_source import make_source
from lightning_sm._export._plan import ExportPlan
from lightning_sm._export._serving import Serving, distribution_versions
from lightning_sm._export._source import Source
from lightning_sm._export._summary import ModelSummary
from lightning_sm._export._write import write_model

__all__ = [
    "BestCheckpoint",
    "Example",
    "ExampleFinder",
    "ExportPlan",
    "FORMATS",
    "ModelSummary",
    "Serving",
    "Source",
    "as_json_values",
    "check_model",
    "check_writable",
    "distribution_versions",
    "find_best",
    "load_file",
    "make_source",
    "saved_hparams",
    "values_for_json",
    "why_not_best",
    "write_model",
]
