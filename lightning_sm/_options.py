"""The ``sagemaker`` group of settings."""

from dataclasses import dataclass, field
from typing import Dict, Optional

__all__ = ["SageMakerOptions"]


@dataclass
class SageMakerOptions:
    """What can be set about SageMaker; outside a training container only ``model_dir`` has a meaning.

    Args:
        channels: Which channel feeds which parameter, such as ``{training: data.data_dir}``. An empty name keeps a
            channel from being routed. By default the channel ``training`` or ``train``, or the only one, feeds the data
            module's ``data_dir``, and each other channel a parameter of its own name, such as ``val_dir``.
        output_dir: Where loggers write instead of ``SM_OUTPUT_DATA_DIR``.
        checkpoint_dir: Where checkpoints go instead of the job's checkpoint directory.
        model_dir: Where the trained model goes instead of ``SM_MODEL_DIR``; outside a container, where it goes at all.
        export: Whether the trained model is written to the model directory after ``fit``.
    """

    channels: Dict[str, str] = field(default_factory=dict)
    output_dir: Optional[str] = None
    checkpoint_dir: Optional[str] = None
    model_dir: Optional[str] = None
    export: bool = True
