"""The ``sagemaker`` group of settings."""

import difflib
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional, Union

from lightning_sm.errors import OptionError

__all__ = ["SageMakerOptions", "options_of"]


@dataclass
class SageMakerOptions:
    """The ``sagemaker`` group of settings. Outside a container only ``model_dir`` and ``max_runtime`` have an effect.

    Set them in a config file (``sagemaker: {save_every: 5m}``), on the command line (``--sagemaker.save_every=5m``), as
    hyperparameters (``sagemaker.save_every``) or in ``trainer_settings(sagemaker={"save_every": "5m"})``.

    Args:
        channels: Which channel feeds which parameter, such as ``{training: data.data_dir}``. An empty name keeps a
            channel from being routed. By default the channel ``training`` or ``train``, or the only one, feeds the data
            module's ``data_dir``, and each other channel a parameter of its own name, such as ``val_dir``.
        hyperparameters: Which key a hyperparameter of another name sets, such as ``{lr: model.lr}``. An empty key
            leaves it to the script. By default a name without dots, such as ``lr``, sets the only key that ends in it.
        output_dir: Where loggers write instead of ``SM_OUTPUT_DATA_DIR``.
        checkpoint_dir: Where checkpoints go instead of the job's checkpoint directory.
        model_dir: Where the trained model goes instead of ``SM_MODEL_DIR``; outside a container, where it goes at all.
        export: How the trained model is written to the model directory after ``fit``: ``state_dict`` (also ``true``),
            ``checkpoint``, ``torchscript``, ``onnx``, ``exported_program`` or ``safetensors``; ``false`` for none.
        export_weights: ``best`` for those of the checkpoint with the best monitored metric, where a metric is
            monitored, or ``last`` for those that training ended with.
        export_submodule: The part of the model to export, such as ``backbone.encoder``, instead of the whole.
        export_example_input: The shape of an input of ``forward``, such as ``[1, 3, 32, 32]``, for the formats that
            run the model once, instead of its ``example_input_array`` or its first batch.
        export_serving: Whether ``code/inference.py`` and ``code/requirements.txt`` are written beside the model, so
            that SageMaker's PyTorch inference container serves the archive as it is.
        resume: ``auto`` to go on from the newest checkpoint of this job that loads, and to stop where there are those
            of another job; ``always`` to take those of another job, too; ``never`` to start afresh; ``require`` to stop
            where there is none.
        resume_weights_only: Whether only such checkpoints are resumed from, and exported as the best, that torch loads
            with ``weights_only=True``, which runs no code that a file names.
        save_every: The time between two checkpoints for resuming, such as ``10m`` or ``90s``, where no callback of the
            project saves regularly. They are also saved at the end of each epoch.
        async_save: Whether checkpoints are written in the background while training goes on.
        max_runtime: How long the job may run, such as ``23h30m``, before it stops by itself with a checkpoint and an
            exported model. SageMaker does not tell the job its limit.
        log_every: The shortest time between two progress lines in the log of a job, such as ``30s``. A run in which no
            batch ends for five times as long is reported as hanging.
        log_metrics: Whether each logged scalar also appears in the job's log, in the form that
            :func:`~lightning_sm.metric_definitions` describes.
        report: Whether ``report.html`` is written into the output directory when ``fit`` ends.
        upload_every: The time between two uploads of TensorBoard files, where a logger's ``save_dir`` is remote.
        mlflow_arn: The ARN of a SageMaker managed MLflow, or another tracking URI, to which the project's
            ``MLFlowLogger`` logs; one is added where the project has none.
        doctor: Whether every host is examined before the training starts, which stops the job on errors.

    Example::

        >>> from lightning_sm import SageMakerOptions
        >>> SageMakerOptions(save_every="5m", export="safetensors").resume
        'auto'
    """

    channels: Dict[str, str] = field(default_factory=dict)
    hyperparameters: Dict[str, str] = field(default_factory=dict)
    output_dir: Optional[str] = None
    checkpoint_dir: Optional[str] = None
    model_dir: Optional[str] = None
    export: Union[bool, str] = True
    export_weights: str = "best"
    export_submodule: Optional[str] = None
    export_example_input: Optional[List[int]] = None
    export_serving: bool = False
    resume: str = "auto"
    resume_weights_only: bool = False
    save_every: str = "10m"
    async_save: bool = False
    max_runtime: Optional[str] = None
    log_every: str = "30s"
    log_metrics: bool = True
    report: bool = True
    upload_every: str = "30s"
    mlflow_arn: Optional[str] = None
    doctor: bool = False


def options_of(given: Optional[Mapping[str, Any]]) -> SageMakerOptions:
    """Return the options that a script hands over by their names.

    Args:
        given: The options, such as ``{"save_every": "5m"}``; ``None`` for none.

    Raises:
        OptionError: It is no mapping, or a name is unknown.

    Example::

        >>> options_of({"save_every": "5m"}).save_every
        '5m'
    """
    known = [option.name for option in fields(SageMakerOptions)]
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"sagemaker is {given!r}.", hint='Give a dict, such as {"save_every": "5m"}.')
    for name in given or {}:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
            raise OptionError(
                f"sagemaker has no option {name!r}.",
                hint=f"Did you mean {close!r}? There are {', '.join(known)}.",
            )
    return SageMakerOptions(**(given or {}))
