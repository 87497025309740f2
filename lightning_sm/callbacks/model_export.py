"""``ModelExport``: writes the best model into SageMaker's model directory when training ends."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Union

from lightning_sm._export import (
    ExampleFinder,
    ExportFormat,
    ExportPlan,
    ExportWeights,
    Serving,
    check_model,
    check_writable,
    find_best,
    json_round_trip,
    make_source,
    saved_hparams,
    summarize,
    why_last_weights,
    write_model,
)
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import steps_taken
from lightning_sm._lightning.sharded import full_checkpoint, full_state_dict, is_sharded, saves_by_itself
from lightning_sm._lightning.train_loop_hooks import first_train_batch
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

__all__ = ["ModelExportMixin", "exports_of"]


class ModelExportMixin(_Base):
    """Write the trained model into the model directory after ``fit``, from global rank 0.

    The formats and their files: ``state_dict`` is ``model.pt``, ``checkpoint`` (Lightning's) is ``model.ckpt``,
    ``torchscript`` is ``model.pt``, ``onnx`` is ``model.onnx``, ``exported_program`` (of ``torch.export``) is
    ``model.pt2``, ``safetensors`` is ``model.safetensors``. ``model.json`` tells what it is and which checkpoint it
    came from, and ``config.yaml`` is the resolved configuration of a CLI run. Each file is loaded again before it takes
    the place of an older one: tensors must be equal, and the output for an example input may differ by a thousandth of
    its largest number. Outside a SageMaker training container the callback does nothing unless it is given a
    ``model_dir``.

    The model that is trained stays as it is: formats that run it get a copy on the CPU. A strategy that keeps a part of
    the model on each rank gathers it first; formats that run the model then make it anew from the hyperparameters that
    it saved. A best checkpoint that is a folder cannot be read here: the weights that training ended with are exported,
    and a line of the log says so.

    Args:
        model_dir: The directory, instead of ``SM_MODEL_DIR``, which the toolkit and SDK v3 set.
        config: The resolved configuration as YAML.
        export: The format; ``True`` is ``state_dict``, ``False`` none.
        export_weights: ``best`` for those of the best checkpoint where a ``ModelCheckpoint`` monitors a metric, or
            ``last`` for those that training ended with, which also stand in where nothing is monitored.
        export_submodule: The part of the model to export, such as ``backbone.encoder``, instead of the whole.
        export_example_input: The shape of an input of ``forward``, such as ``[1, 3, 32, 32]``, for ``torchscript``,
            ``onnx`` and ``exported_program``. By default ``example_input_array`` is taken, else the first batch (the
            tensor that it is or begins with), for a part of the model the first input that it gets.
        export_serving: Whether ``code/inference.py``, ``code/requirements.txt`` and the project's imported modules are
            written beside the model, so that SageMaker's PyTorch inference container serves the archive as it is.
        weights_only: Whether no code of the best checkpoint may run when it is loaded.
        portable_config: The configuration without what SageMaker decided, for ``config.yaml``; the resolved one then is
            ``config.resolved.yaml``.

    Raises:
        OutputError: The directory cannot be written. It is tried before training starts.
        ExportError: An option has no meaning, a package that it needs is missing, the model lacks what it needs (all of
            which is found out before the first step), or the model could not be written.
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
        plan = self.plan or ExportPlan()
        self._examples = ExampleFinder(plan.submodule, plan.example_shape)
        self._last: Mapping[str, Any] = {}
        self._steps: Optional[int] = None

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Try the model directory."""
        if self._is_active and stage == "fit" and trainer.is_global_zero:
            with failure_reported(self._job):
                check_writable(str(self.model_dir), "model directory")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Find out whether this model can be exported as it was asked for."""
        if not self._is_active or self.plan is None:
            return
        self._last = {}
        with failure_reported(self._job):
            check_model(
                self.plan,
                pl_module,
                self._hparams(pl_module),
                self.config,
                sharded=is_sharded(trainer),
                saved_by_strategy=saves_by_itself(trainer),
            )
            self._serving(pl_module)
            if self.plan.format.is_graph:
                self._examples.attach(pl_module)

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Keep the first batch, where one is needed as an example; the sanity check may show it."""
        if trainer.state.fn == "fit":
            self._see(batch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any, **__: Any) -> None:
        """Keep the first batch, where one is needed as an example."""
        self._see(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Find out whether the part to export was run."""
        with failure_reported(self._job):
            self._examples.check_called()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Gather the weights, in which every rank of a sharded strategy takes part."""
        self._gather(trainer, has_ended=True)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the model from global rank 0, now that every checkpoint has been saved."""
        self._examples.detach()
        if not self._is_active:
            return
        if not self._last:
            self._gather(trainer, has_ended=True)
        if trainer.is_global_zero:
            import torch

            # A fit that is left while it validates is in that mode, and no graph is made of tensors that know it.
            with failure_reported(self._job), torch.inference_mode(False):
                self._write(trainer, pl_module)
        self._last = {}

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the model as it was."""
        self._examples.detach()

    def export_now(self, trainer: Any, pl_module: Any) -> None:
        """Write the model as the fit has it now, for a fit that is left before its end. Every rank must call it."""
        self._steps = steps_taken(self.namespace, trainer)
        self._gather(trainer, has_ended=False)
        self.on_fit_end(trainer, pl_module)
        self._steps = None

    @property
    def _is_active(self) -> bool:
        return self.model_dir is not None and self.plan is not None

    def _gather(self, trainer: Any, *, has_ended: bool) -> None:
        if not self._is_active or self.plan is None:
            return
        if self.plan.format is ExportFormat.CHECKPOINT:
            self._last = full_checkpoint(self.namespace, trainer, has_ended=has_ended)
        else:
            self._last = {"state_dict": full_state_dict(trainer)}

    def _see(self, batch: Any) -> None:
        if self._is_active and self.plan is not None and self.plan.format.is_graph:
            with failure_reported(self._job):
                self._examples.observe_batch(batch)

    def _write(self, trainer: Any, pl_module: Any) -> None:
        plan, directory = self.plan, self.model_dir
        assert plan is not None
        assert directory is not None
        best = find_best(trainer) if plan.weights is ExportWeights.BEST else None
        if plan.format.is_graph and self._examples.example is None and plan.submodule is None:
            self._examples.observe_batch(first_train_batch(trainer))
        source = make_source(
            plan,
            pl_module,
            self._last,
            None if best is None else best.path,
            example=self._examples.example,
            rebuild=is_sharded(trainer),
            hparams=self._hparams(pl_module),
            config=self.config,
            weights_only=self.weights_only,
        )
        summary = summarize(self.namespace, trainer, pl_module, plan, best, self._hparams(pl_module))
        if self._steps is not None:
            summary = replace(summary, global_step=self._steps)
        serving = self._serving(pl_module)
        configs = (self.config, None) if self.portable_config is None else (self.portable_config, self.config)
        path = write_model(directory, source, summary, configs[0], plan, serving, type(pl_module), configs[1])
        if best is None:
            which = f"the last model ({why_last_weights(trainer, plan.weights)})"
        else:
            which = f"the best model ({best.monitor} {best.score:.4g})"
        log.info("Exported %s to %s", which, path)

    def _hparams(self, pl_module: Any) -> Optional[Dict[str, Any]]:
        """What the model saved, as it can be kept where the archive must be able to make the model anew."""
        assert self.plan is not None
        hparams = saved_hparams(pl_module)
        return json_round_trip(hparams) if self.plan.serving else hparams

    def _serving(self, pl_module: Any) -> Optional[Serving]:
        assert self.plan is not None
        if not self.plan.serving:
            return None
        name = self.namespace.name.partition(".")[0].replace("_", "-")
        return Serving.collect(type(pl_module), self.plan.format, name)


def exports_of(trainer: Any) -> List[Any]:
    """The trainer's callbacks that export its model."""
    return [callback for callback in trainer.callbacks if isinstance(callback, ModelExportMixin)]
