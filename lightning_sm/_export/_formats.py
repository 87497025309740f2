"""Every format by its name."""

from lightning_sm._export._checkpoint import CHECKPOINT
from lightning_sm._export._exported_program import EXPORTED_PROGRAM
from lightning_sm._export._onnx import ONNX
from lightning_sm._export._safetensors import SAFETENSORS
from lightning_sm._export._state_dict import STATE_DICT
from lightning_sm._export._torchscript import TORCHSCRIPT

__all__ = ["FORMATS"]

FORMATS = {made.name: made for made in (STATE_DICT, CHECKPOINT, TORCHSCRIPT, ONNX, EXPORTED_PROGRAM, SAFETENSORS)}
