"""Exports a trained model into the model directory, in one of six formats, with the code to serve it if wanted."""

from lightning_sm._export.example import Example, example_of_batch, example_of_model
from lightning_sm._export.load_back import compare_outputs, compare_tensors
from lightning_sm._export.plan import (
    ExportFormat,
    ExportPlan,
    ExportWeights,
    check_model,
    json_round_trip,
    saved_hparams,
)
from lightning_sm._export.serving import Serving, distribution_versions
from lightning_sm._export.source import Source, load_file, load_weights, make_source
from lightning_sm._export.summary import (
    BestCheckpoint,
    ModelSummary,
    find_best,
    has_monitor,
    summarize,
    why_last_weights,
)
from lightning_sm._export.writer import others_models, write_model

__all__ = [
    "BestCheckpoint",
    "Example",
    "ExportFormat",
    "ExportPlan",
    "ExportWeights",
    "ModelSummary",
    "Serving",
    "Source",
    "check_model",
    "compare_outputs",
    "compare_tensors",
    "distribution_versions",
    "example_of_batch",
    "example_of_model",
    "find_best",
    "has_monitor",
    "json_round_trip",
    "load_file",
    "load_weights",
    "make_source",
    "others_models",
    "saved_hparams",
    "summarize",
    "why_last_weights",
    "write_model",
]
