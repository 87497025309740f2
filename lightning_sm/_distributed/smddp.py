"""``SMDDPStrategy``: Lightning's DDP in the launcher's world, over AWS's SMDDP collectives where they are available."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Dict, Literal, Optional, Union

from lightning_sm._distributed.communication import AUTO, Communication, CommunicationOptions
from lightning_sm._distributed.local_steps import LocalSteps
from lightning_sm._distributed.mixin import StrategyMixin
from lightning_sm._distributed.powersgd import PowerSGD
from lightning_sm._lightning.replaced_method import UndoList
from lightning_sm._lightning.trainer import callbacks_named
from lightning_sm._lightning.trainer_hooks import before_train_end
from lightning_sm._logging import log
from lightning_sm.errors import HyperparameterError, StrategyUnavailableError

if TYPE_CHECKING:
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

__all__ = ["DataParallelMixin", "SMDDPMixin"]


class DataParallelMixin(StrategyMixin):
    """Distributed data parallel training on SageMaker, without options of communication.

    So it is for Fabric, which calls none of their hooks, and for Lightning before 2.1. See ``SMDDPStrategy`` of a newer
    Lightning for backends, files and variables.
    """

    strategy_name = "smddp"
    _options = CommunicationOptions()

    def __init__(
        self,
        process_group_backend: Optional[str] = None,
        cluster_environment: "Optional[ClusterEnvironment]" = None,
        **kwargs: Any,
    ) -> None:
        given = {each.name: kwargs[each.name] for each in fields(CommunicationOptions) if each.name in kwargs}
        # A number of MiB is an argument of DDP.
        if given.keys() - {"bucket_cap_mb"} or given.get("bucket_cap_mb") == AUTO:
            named = ", ".join(f"{name}={value}" for name, value in given.items())
            raise StrategyUnavailableError(
                f"{named} and the other options of communication are for the Trainer of Lightning 2.1 and newer, and "
                f"this is a strategy of {self.namespace.name} {self.namespace.version_text}.",
                hint="Leave it out, or install a newer Lightning; the model of a Fabric takes a hook of "
                "torch.distributed.algorithms.ddp_comm_hooks.",
            )
        super().__init__(process_group_backend, cluster_environment, **kwargs)

    def _smddp_problem(self) -> Optional[str]:
        return self._options.smddp_problem(self._ddp_kwargs)

    def determine_ddp_device_ids(self) -> Any:
        """Only GPUs have some: for any other device that has, Lightning would make a stream of CUDA."""
        return super().determine_ddp_device_ids() if self.root_device.type == "cuda" else None

    def setup_distributed(self) -> None:
        """Choose the backend, log why, and initialize the process group."""
        self._prepare_group()
        super().setup_distributed()


class SMDDPMixin(DataParallelMixin):
    """Distributed data parallel training on SageMaker, over AWS's SMDDP collectives where they are available.

    On a laptop and under plain ``torchrun`` it is Lightning's ``DDPStrategy``. In a SageMaker container it uses a
    :class:`~lightning_sm.SageMakerEnvironment` and takes ``devices`` and ``num_nodes`` from the launcher; otherwise
    each process would train alone and exit with code 0. The backend is ``smddp`` if the job's distribution requests it,
    the device is a GPU and the library can be imported; else NCCL on GPUs, ``neuron`` on NeuronCores and gloo on CPUs.
    One log line tells which and why. Under ``smddp`` a mean is computed as a sum and a division, and no second process
    group is created: AWS documents neither for that library. Under ``neuron`` a mean is computed so as well.

    Registered with Lightning as ``smddp``, ``smddp_find_unused_parameters_false`` and
    ``smddp_find_unused_parameters_true``. It reads the files and variables that :class:`~lightning_sm.TrainingJob` and
    :class:`~lightning_sm.Topology` list, and:

    ``sagemaker_distributed_dataparallel_enabled``
      A hyperparameter that the SDK sets for ``distribution={"smdistributed": {"dataparallel": {"enabled": True}}}`` and
      ``{"pytorchddp": {"enabled": True}}``. Absent with other distributions.

    ``PL_TORCH_DISTRIBUTED_BACKEND``
      The backend, where ``process_group_backend`` is not given; set by the user. Lightning 1.5 only.

    ``MASTER_ADDR``, ``MASTER_PORT``
      Written, not read, before the process group is initialized under ``smddp``.

    What is sent can be made less, on each device and backend but ``smddp``, for which AWS documents none of it: there
    the backend is NCCL then. ``gradient_compression`` and ``local_steps`` change what is learned, which a log line
    says. What they keep between steps is saved and restored by :class:`~lightning_sm.callbacks.AutoResume`.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described above.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        gradient_compression: How gradients are sent: ``bf16`` or ``fp16``, in half of the bytes; ``powersgd``, by
            matrices of low rank, with error feedback; ``auto``, as they are or as ``bf16``, whichever is faster by the
            first steps of ``fit`` and the network. By default as they are.
        bucket_cap_mb: The size of DDP's buckets in MiB; ``auto`` chooses it from the first steps.
        powersgd_rank: The rank of PowerSGD's matrices, 4 by default.
        local_steps: Optimizer steps after which processes average their weights, instead of gradients in each step
            (post-local SGD). Weights are averaged also before a validation, in each checkpoint and at the end.
        outer_lr: With ``local_steps``, the learning rate of an outer SGD with Nesterov's momentum, whose gradient is
            the averaged change of the weights (DiLoCo). 0.7 if ``outer_momentum`` alone is set; by default there is
            no outer SGD.
        outer_momentum: Its momentum, 0.9 if ``outer_lr`` alone is set.
        communication_warmup_steps: Optimizer steps with plain DDP before PowerSGD or local steps begin, 1,000 by
            default.
        **kwargs: The arguments of Lightning's ``DDPStrategy`` and of torch's ``DistributedDataParallel``, such as
            ``static_graph`` and ``find_unused_parameters``. ``gradient_as_bucket_view`` is off, as in Lightning: a
            program that combines gradients of several backward passes would find the last ones in all of them.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` requests another world.
        HyperparameterError: Options of communication contradict each other or the model.
        SMDDPUnavailableError: ``smddp`` was requested by name and cannot be used (raised in ``fit``).
        StrategyUnavailableError: Options of communication need Lightning 2.1, or the backend cannot sum the type.

    Sources: ``torch.distributed.algorithms.ddp_comm_hooks``; AWS, API reference of SMDDP.

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="cpu", strategy="smddp")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMDDPStrategy(find_unused_parameters=False))  # doctest: +SKIP
    """

    model: Any

    def __init__(
        self,
        process_group_backend: Optional[str] = None,
        cluster_environment: "Optional[ClusterEnvironment]" = None,
        *,
        gradient_compression: Optional[Literal["bf16", "fp16", "powersgd", "auto"]] = None,
        bucket_cap_mb: Union[float, Literal["auto"], None] = None,
        powersgd_rank: Optional[int] = None,
        local_steps: Optional[int] = None,
        outer_lr: Optional[float] = None,
        outer_momentum: Optional[float] = None,
        communication_warmup_steps: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        options = CommunicationOptions(
            gradient_compression,
            powersgd_rank,
            local_steps,
            communication_warmup_steps,
            outer_lr,
            outer_momentum,
            bucket_cap_mb,
        )
        options.check(kwargs)
        self._options = options
        if bucket_cap_mb not in (None, AUTO):
            kwargs["bucket_cap_mb"] = bucket_cap_mb
        #: What is sent in the steps of the fit that runs.
        self.communication = Communication(None)
        self._undo = UndoList()
        super().__init__(process_group_backend, cluster_environment, **kwargs)

    def configure_ddp(self) -> None:
        """Wrap the model, and register the hook of the options, which Lightning does on GPUs only."""
        super().configure_ddp()
        if self._ddp_comm_hook is not None and self.root_device.type != "cuda" and self.global_rank == 0:
            log.warning("Lightning does not register ddp_comm_hook on %s: it has no effect.", self.root_device.type)
        self.communication = self._communication_of(self.model)
        told = self._options.describe()
        if told is not None and self.global_rank == 0:
            log.info("%s: %s.", self._name, told)

    def _communication_of(self, model: Any) -> Communication:
        options = self._options
        if options.is_tuned:
            from lightning_sm._distributed.autotune import Autotune

            return Autotune(self, options.gradient_compression, options.bucket_cap_mb)
        if options.local_steps is not None:
            return LocalSteps(model, options.local_steps, options.warmup_steps, options.outer)
        if options.gradient_compression == "powersgd":
            return PowerSGD(model, options.rank, options.warmup_steps)
        communication = Communication(model)
        if options.gradient_compression is not None:
            communication.send_as(options.gradient_compression)
        return communication

    def wrap_again(self, bucket_cap_mb: Optional[float]) -> Any:
        """Wrap the model in another DDP between two steps, with buckets of another size, and return that. Collective.

        Args:
            bucket_cap_mb: The size in MiB; ``None`` for DDP's own.
        """
        module = self.model.module
        # Whoever may still hold the earlier wrapper: it would reduce gradients, too.
        self.model._remove_autograd_hooks()
        # DDP would replace those of other processes by global rank 0's.
        buffers = [buffer.clone() for buffer in module.buffers()]
        given = self._ddp_kwargs
        self._ddp_kwargs = given if bucket_cap_mb is None else {**given, "bucket_cap_mb": bucket_cap_mb}
        self.model = module
        # Lightning wraps in a stream of its own, which waits for no other.
        self._synchronize()
        super().configure_ddp()
        self._synchronize()
        self._ddp_kwargs = given
        for buffer, own in zip(module.buffers(), buffers):
            buffer.data.copy_(own)
        return self.model

    def _synchronize(self) -> None:
        if self.root_device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Set the model and its optimizers up."""
        if self._ddp_kwargs.get("static_graph") and trainer.accumulate_grad_batches > 1:
            raise HyperparameterError(
                f"SMDDPStrategy: static_graph with accumulate_grad_batches={trainer.accumulate_grad_batches} fails in "
                "torch, whose DDP must send in its first backward then.",
                hint="Leave static_graph out.",
            )
        finetuning = callbacks_named(trainer, "BaseFinetuning")
        if finetuning and self._options.keep_state:
            raise HyperparameterError(
                f"SMDDPStrategy: powersgd, local_steps and auto cannot go on when {type(finetuning[0]).__name__} "
                "unfreezes layers, for which the model is wrapped again.",
                hint="Leave them out, or set gradient_compression to bf16.",
            )
        super().setup(trainer)
        self.communication.setup(self)
        # Hooks at the end of training save the model.
        self._undo.append(before_train_end(trainer, lambda: self.communication.average_weights()))

    def load_model_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load weights. Within a fit a search (``LearningRateFinder``) goes back to those of its start so."""
        super().load_model_state_dict(*args, **kwargs)
        self.communication.load({}, is_same_world=False)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Step, and average the weights if that is due."""
        self.communication.before_step()
        output = super().optimizer_step(*args, **kwargs)
        self.communication.after_step()
        return output

    def on_validation_start(self) -> None:
        """Validate the same weights on all processes."""
        super().on_validation_start()
        self.communication.average_weights()

    def lightning_module_state_dict(self) -> Dict[str, Any]:
        """The state of the model, with the average of the weights where processes have their own. Collective then."""
        return self.communication.average_state_dict(super().lightning_module_state_dict())

    def teardown(self) -> None:
        """Tear down, and release what the options keep of the model."""
        super().teardown()
        self._undo.run()
        self.communication = Communication(None)
