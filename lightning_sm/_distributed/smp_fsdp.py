"""``SMPFSDPStrategy``: Lightning's FSDP with AWS's model parallel library 2.x (``torch.sagemaker``)."""

import contextlib
import importlib
from typing import Any, ContextManager, Dict, Optional

from lightning_sm._distributed.sharded import FSDPMixin
from lightning_sm._distributed.smp_parameters import TSMParameters, import_library, read_mp_parameters
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer import callbacks_named
from lightning_sm._logging import log
from lightning_sm.errors import StrategyUnavailableError

__all__ = ["SMPFSDPMixin"]

_MODULE = "torch.sagemaker"
_WITHOUT_IT = (
    "Use AWS's image smdistributed-modelparallel, or train with FSDP2 (SMDDPModelParallelStrategy) on another one."
)


class SMPFSDPMixin(FSDPMixin):
    """FSDP with AWS's model parallel library 2.x (SMP v2, ``torch.sagemaker``).

    It is :class:`~lightning_sm.SMDDPFSDPStrategy` with what AWS documents for that library: ``tsm.init`` after the
    process group is there; ``tsm.transform`` of the LightningModule's children if a tensor, context or expert parallel
    degree is above 1; parameters on the meta device initialized by ``DelayedParamIniter``; with a
    ``hybrid_shard_degree`` FSDP's ``HYBRID_SHARD``; data distributed over the processes that read different data; and
    gradients clipped by ``torch.sagemaker.grad_norm``.

    Checkpoints and export are those of FSDP where these degrees are 1. Otherwise the model's tensors are in AWS's own
    checkpoint format (``torch.sagemaker.distributed.checkpoint``), which this strategy does not write.

    Registered with Lightning as ``smp_fsdp``. Needs Lightning 2.1 and an image with the library: AWS's images
    ``smdistributed-modelparallel`` with torch 2.0 to 2.5. It reads the files and variables that
    :class:`~lightning_sm.SMDDPFSDPStrategy` lists, and:

    ``mp_parameters``
      A hyperparameter that the SDK sets for ``distribution={"torch_distributed": {...}, "smdistributed":
      {"modelparallel": {...}}}``; where the file of the hyperparameters is missing, ``SM_HP_MP_PARAMETERS``, which the
      toolkit sets. Without it the library has its defaults.

    Args:
        moe_config: ``MoEConfig`` of ``torch.sagemaker.moe``, for ``tsm.transform`` with expert parallelism.
        **kwargs: The arguments of :class:`~lightning_sm.SMDDPFSDPStrategy`.

    Raises:
        JobConfigError: ``mp_parameters`` is malformed or does not fit the world.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` requests another world.
        StrategyUnavailableError: The library or Lightning 2.1 is missing, or a checkpoint is to be saved with tensor,
            context or expert parallelism.

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="gpu", strategy="smp_fsdp")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMPFSDPStrategy(state_dict_type="sharded"))  # doctest: +SKIP
    """

    strategy_name = "smp_fsdp"
    kwargs: Dict[str, Any]  # of FSDPStrategy

    def __init__(self, moe_config: Optional[Any] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parameters = TSMParameters()
        self._moe_config = moe_config
        self._tsm: Any = None

    def setup_environment(self) -> None:
        """Initialize the process group, and then the library."""
        given = read_mp_parameters(self._job)
        self.parameters = TSMParameters.parse(given)
        super().setup_environment()
        self.parameters.check_world(self.world_size)
        self._tsm = import_library(_MODULE, "smp_fsdp", _WITHOUT_IT)
        if not self._tsm.is_initialized():
            self._tsm.init(given)
            if self.global_rank == 0:
                log.info("SMPFSDPStrategy: %s", self.parameters)
        if 1 < self.parameters.hybrid_shard_degree < self.world_size:
            fsdp: Any = importlib.import_module("torch.distributed.fsdp")
            self.sharding_strategy = fsdp.ShardingStrategy.HYBRID_SHARD

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Processes of one tensor or context parallel group read the same data."""
        same = self.parameters.same_data
        return {"num_replicas": self.world_size // same, "rank": self.global_rank // same}

    def setup(self, trainer: Any) -> None:
        """Wrap the model, and clip by the library's norm."""
        # The last two are ours.
        savers = callbacks_named(trainer, "Checkpoint", "AutoResume", "ModelExport")
        if trainer.state.fn == "fit" and savers:
            self._check_state()
        super().setup(trainer)
        # Lightning's plugin for FSDP refuses to clip by the norm.
        ReplacedMethod(self.precision_plugin, "clip_grad_by_norm", lambda _, optimizer, value: self._clip(value))

    def _clip(self, max_norm: float) -> None:
        module: Any = importlib.import_module(f"{_MODULE}.grad_norm")
        module.clip_grad_norm_(self.model, max_norm)

    def _setup_model(self, model: Any) -> Any:
        if not self.parameters.is_plain:
            for name, child in list(model.named_children()):
                if any(True for _ in child.parameters()):
                    setattr(model, name, self._tsm.transform(child, config=self._moe_config))
        with self._delayed_init(model):
            return super()._setup_model(model)

    def _delayed_init(self, model: Any) -> ContextManager[Any]:
        """Let FSDP initialize parameters that are on the meta device, and check afterwards that it has."""
        if not any(parameter.is_meta for parameter in model.parameters()):
            return contextlib.nullcontext()
        initer: Any = importlib.import_module(f"{_MODULE}.delayed_param").DelayedParamIniter(model)
        # The second is an argument of the FSDP in AWS's images only.
        self.kwargs.update(param_init_fn=initer.get_param_init_fn(), post_param_init_fn=initer.get_post_param_init_fn())
        return initer.validate_params_and_buffers_inited()  # type: ignore[no-any-return]

    def lightning_module_state_dict(self) -> Dict[str, Any]:
        """The model, where torch's state dicts hold it. Every checkpoint has it."""
        self._check_state()
        return super().lightning_module_state_dict()

    def _check_state(self) -> None:
        """Refuse to save what is not FSDP's alone.

        Raises:
            StrategyUnavailableError: A degree is above 1.
        """
        if not self.parameters.is_plain:
            raise StrategyUnavailableError(
                f"The strategy smp_fsdp saves no model with these degrees: {self.parameters}. It is in AWS's own "
                "format.",
                hint="Save by torch.sagemaker.distributed.checkpoint in a callback of yours, with "
                "enable_checkpointing=False and sagemaker.export=false; or train with FSDP2 "
                "(SMDDPModelParallelStrategy).",
            )
