"""``ModelExport``: writes the trained model into SageMaker's model directory at the end of ``fit``."""

import os
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from lightning_sm._atomic_file import check_writable
from lightning_sm._export import (
    Example,
    ExportFormat,
    ExportPlan,
    ExportWeights,
    Serving,
    check_model,
    example_of_batch,
    example_of_model,
    find_best,
    has_monitor,
    json_round_trip,
    make_source,
    others_models,
    saved_hparams,
    summarize,
    why_last_weights,
    write_model,
)
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.gathered import full_checkpoint, full_state_dict
from lightning_sm._lightning.legacy import steps_taken, strategy_of
from lightning_sm._lightning.strategies import bypasses_checkpoint_io, is_sharded
from lightning_sm._lightning.trainer import Callback, callbacks_of
from lightning_sm._lightning.trainer_hooks import first_train_batch, skip_hooks
from lightning_sm._logging import log
from lightning_sm._resume.random_state import keep_process_state
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["ModelExportMixin", "exports_of"]

# Those that keep a batch as the example.
_EXAMPLE_HOOKS = ("on_train_batch_start", "on_validation_batch_start")


class ModelExportMixin(Callback):
    """Write the trained model into the model directory at the end of ``fit``, from global rank 0.

    SageMaker uploads the model directory as ``model.tar.gz``. Outside a training container the callback does nothing
    unless it is given a ``model_dir``. With the default format it does nothing where the program itself has written a
    whole model there during ``fit``, as ``save_pretrained`` in ``on_train_end`` does. The trained model is not changed:
    graph formats run a copy on the CPU.
    Each file is written to a staging directory, loaded again and compared, and only then replaces an earlier one:
    tensors must be equal, and outputs for an example input may differ by 0.001 of their largest value (0.02 in half
    precision).

    Files that are written:

    ``model.pt``, ``model.ckpt``, ``model.onnx``, ``model.pt2`` or ``model.safetensors``
      The model; the name depends on ``export``.

    ``model.json``
      The model's class, hyperparameters and metrics, the checkpoint that the weights are from, whether the training had
      ended, the versions that trained it, and what was compared.

    ``config.yaml``, ``config.resolved.yaml``
      The configuration of a CLI run without the settings that SageMaker determined, which runs elsewhere, and the one
      that the job ran with. Absent in scripts without a CLI.

    ``code/``
      With ``export_serving`` only: ``inference.py``, ``requirements.txt`` and the project's imported modules.

    Environment variables:

    ``SM_MODEL_DIR``
      The model directory, ``/opt/ml/model``. Set by the training toolkit (SDK v2) or the container drivers (SDK v3).
      In containers with an entry point of their own it is absent, and ``model`` below the base directory is used.

    With a strategy that shards the model, all ranks gather the weights, one parameter at a time: global rank 0 needs
    host memory for one copy of the model, the others for none. Graph formats instantiate the model again from its saved
    hyperparameters, and need a second copy. A sharded best checkpoint is read by global rank 0 alone, from its folder;
    where that lacks shards, as on several hosts without a common file system, the last weights are exported instead,
    with a warning in the log. The format ``checkpoint`` holds the states of the optimizers of FSDP and FSDP2 if the
    last weights are exported. It holds none of DeepSpeed, whose optimizers only its own folders can restore, and none
    of a sharded best checkpoint; both can be loaded by ``load_from_checkpoint`` and not be resumed from.

    Args:
        model_dir: The model directory instead of ``SM_MODEL_DIR``.
        config: The resolved configuration as YAML; :class:`~lightning_sm.cli.SageMakerCLI` sets it.
        export: The format: ``state_dict`` (also ``True``; ``model.pt``), ``checkpoint`` (Lightning's; ``model.ckpt``),
            ``torchscript`` (``model.pt``), ``onnx`` (``model.onnx``), ``exported_program`` (of ``torch.export``;
            ``model.pt2``), ``safetensors`` (``model.safetensors``), or ``False`` for none.
        export_weights: ``best`` for those of the best checkpoint if a ``ModelCheckpoint`` monitors a metric, else the
            last ones; ``last`` for those at the end of training.
        export_submodule: The dotted path of a submodule to export, such as ``backbone.encoder``, instead of the whole
            model.
        export_example_input: The shape of an input of ``forward``, such as ``[1, 3, 32, 32]`` (batch dimension first),
            for ``torchscript``, ``onnx`` and ``exported_program``. By default the input is ``example_input_array``,
            else the first batch or its first element; a submodule has its own ``example_input_array``, or needs this.
        export_serving: Whether ``code/`` is written, with which SageMaker's PyTorch inference container serves the
            archive.
        weights_only: Whether the best checkpoint is loaded with ``weights_only=True``.
        portable_config: The configuration without the settings that SageMaker determined, for ``config.yaml``;
            ``config`` is then written to ``config.resolved.yaml``.

    Raises:
        OutputError: The model directory is not writable; checked before training.
        ExportError: An option is invalid, a package is missing, or the model cannot be exported so, all of which is
            checked before the first training step; or the model could not be written after training.

    Sources: ``sagemaker_training/environment.py`` for the variable; ``sagemaker_pytorch_serving_container`` for
    ``model.pt`` and ``code/``.

    Example::

        >>> from lightning_sm.callbacks import ModelExport
        >>> export = ModelExport("exported", export="torchscript", export_example_input=[1, 3, 32, 32])
        >>> export.plan.format.file, export.plan.example_shape
        ('model.pt', (1, 3, 32, 32))
        >>> trainer = Trainer(callbacks=[export])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(
        self,
        model_dir: Optional[str] = None,
        config: Optional[str] = None,
        export: Union[bool, str] = True,
        export_weights: str = "best",
        export_submodule: Optional[str] = None,
        export_example_input: Optional[List[int]] = None,
        export_serving: bool = False,
        weights_only: bool = False,
        portable_config: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._job = TrainingJob.resolve()
        self.model_dir = model_dir or self._job.model_dir
        self.config = config
        self.portable_config = portable_config
        self.weights_only = weights_only
        with failure_reported(self._job):
            self.plan = ExportPlan.parse(export, export_weights, export_submodule, export_example_input, export_serving)
        self._is_active = self.model_dir is not None and self.plan is not None
        self._plan = self.plan or ExportPlan()
        self._is_by_default = export is True and not export_serving
        self._example: Optional[Example] = None
        self._last: Mapping[str, Any] = {}
        # The program's own models that were in the model directory before the fit.
        self._others: Dict[str, Tuple[int, int]] = {}
        #: The description of what the current fit has exported.
        self.exported: Optional[str] = None
        # What differs in ``model.json`` where the training has not ended.
        self._early: Dict[str, Any] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Check that the model directory is writable."""
        self.exported = None
        if self._is_active and stage == "fit" and trainer.is_global_zero:
            with failure_reported(self._job):
                check_writable(str(self.model_dir), "model directory")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Check whether this model can be exported as configured."""
        if not self._is_active:
            return
        self._last = {}
        # Such as the pretrained model from which this fit begins.
        self._others = self._others_models()
        with failure_reported(self._job):
            check_model(
                self._plan,
                pl_module,
                self._hparams(pl_module),
                self.config,
                is_sharded=is_sharded(trainer),
                saves_shards=has_monitor(trainer) and bypasses_checkpoint_io(strategy_of(trainer)),
                weights_only=self.weights_only,
            )
            self._serving(pl_module)
            self._example = example_of_model(self._plan, pl_module) if self._plan.format.is_graph else None
        # At each batch Lightning takes microseconds for a hook that has nothing to do.
        skip_hooks(self.namespace, self, _EXAMPLE_HOOKS, skip=not self._needs_example)

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Keep the first batch as the example, if one is needed; it may be the sanity check's."""
        if trainer.state.fn == "fit":
            self._observe(batch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Keep the first batch as the example, if one is needed."""
        self._observe(batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Gather the weights, which is a collective operation with a sharded strategy."""
        self._gather(trainer, has_ended=True)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the model from global rank 0, after all checkpoints have been saved."""
        if not self._is_active:
            return
        if not self._last:
            self._gather(trainer, has_ended=True)
        if trainer.is_global_zero:
            import torch

            # A fit that ends during validation is in inference mode, whose tensors cannot be traced. A batch that is
            # read for an example, and a model that is made again, may draw random numbers.
            with failure_reported(self._job), torch.inference_mode(False), keep_process_state():
                found = self._others_models()
                others = sorted(name for name, each in found.items() if each != self._others.get(name))
                if not others:
                    self._write(trainer, pl_module)
                else:
                    log.info("Exported nothing: the program has written %s to %s", others[0], self.model_dir)
        self._last = {}

    def export_now(self, trainer: Any, pl_module: Any, stopped_by: Optional[str] = None) -> None:
        """Write the model in its current state, for a fit that ends early. Every rank must call it.

        Args:
            trainer: The trainer.
            pl_module: The model.
            stopped_by: What stops the fit, for the log and ``model.json``.
        """
        steps = steps_taken(self.namespace, trainer)
        self._early = {"global_step": steps, "ended": False, "stopped_by": stopped_by}
        self._gather(trainer, has_ended=False)
        self.on_fit_end(trainer, pl_module)
        self._early = {}

    def _gather(self, trainer: Any, *, has_ended: bool) -> None:
        if not self._is_active:
            return
        if self._plan.format is ExportFormat.CHECKPOINT:
            self._last = full_checkpoint(self.namespace, trainer, has_ended=has_ended)
        else:
            self._last = {"state_dict": full_state_dict(trainer)}

    def _others_models(self) -> Dict[str, Tuple[int, int]]:
        return others_models(str(self.model_dir)) if self._is_by_default else {}

    def _observe(self, batch: Any) -> None:
        if self._is_active and self._needs_example:
            with failure_reported(self._job):
                self._example = example_of_batch(batch)

    @property
    def _needs_example(self) -> bool:
        return self._plan.format.is_graph and self._example is None

    def _write(self, trainer: Any, pl_module: Any) -> None:
        plan = self._plan
        best = find_best(trainer) if plan.weights is ExportWeights.BEST else None
        if plan.format.is_graph and self._example is None:
            self._example = example_of_batch(first_train_batch(trainer))
        source = make_source(
            plan,
            pl_module,
            self._last,
            None if best is None else best.path,
            example=self._example,
            rebuild=is_sharded(trainer),
            hparams=self._hparams(pl_module),
            config=self.config,
            weights_only=self.weights_only,
        )
        best = best if source.is_best else None
        summary = summarize(self.namespace, trainer, pl_module, plan, best, self._hparams(pl_module))
        summary = replace(summary, **self._early)
        serving = self._serving(pl_module)
        configs = (self.config, None) if self.portable_config is None else (self.portable_config, self.config)
        path = write_model(str(self.model_dir), source, summary, configs[0], plan, serving, configs[1])
        self.exported = os.path.join(str(self.model_dir), "model.json")
        if best is None:
            which = f"the last model ({why_last_weights(trainer, plan.weights)})"
        else:
            which = f"the best model ({best.monitor} {best.score:.4g})"
        log.info("Exported %s to %s%s", which, path, "" if summary.ended else _not_ended(summary.stopped_by))

    def _hparams(self, pl_module: Any) -> Optional[Dict[str, Any]]:
        """The saved hyperparameters, as JSON returns them where the inference container instantiates the model."""
        hparams = saved_hparams(pl_module)
        return json_round_trip(hparams) if self._plan.serving else hparams

    def _serving(self, pl_module: Any) -> Optional[Serving]:
        if not self._plan.serving:
            return None
        name = self.namespace.name.partition(".")[0].replace("_", "-")
        return Serving.collect(type(pl_module), self._plan.format, name)


def _not_ended(stopped_by: Optional[str]) -> str:
    return f". The program's training had not ended{f': {stopped_by}' if stopped_by else ''}"


def exports_of(trainer: Any) -> List[Any]:
    """The :class:`ModelExport` callbacks of a trainer."""
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, ModelExportMixin)]
