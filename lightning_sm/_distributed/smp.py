"""``SMPStrategy``: Lightning's loop over AWS's model parallel library 1.x, by pipeline and by tensor parallelism."""

import contextlib
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

import torch

from lightning_sm import _lightning
from lightning_sm._distributed.mixin import StrategyMixin
from lightning_sm._distributed.smp_parameters import SMPParameters, import_library, read_mp_parameters
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._logging import log
from lightning_sm.errors import JobConfigError, StrategyUnavailableError, TopologyError

if TYPE_CHECKING:
    from pytorch_lightning.plugins.precision import Precision as _PrecisionBase
else:
    _PrecisionBase = object

__all__ = ["SMPMixin", "SMPPrecisionMixin"]

_MODULE = "smdistributed.modelparallel.torch"
_WITHOUT_IT = (
    "Use an image that has it, PyTorch 1.6 to 2.0 of AWS, or train with FSDP2 (SMDDPModelParallelStrategy) on a newer "
    "one."
)
# The context of Lightning's precision plugin around each step.
_CONTEXTS = {
    "training_step": "train_step_context",
    "validation_step": "val_step_context",
    "test_step": "test_step_context",
    "predict_step": "predict_step_context",
}
# The arguments of self.log behind the name and the value.
_Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]
# What a step of a microbatch has logged. The library may run several microbatches in turns.
_logged: "ContextVar[Optional[Dict[str, Any]]]" = ContextVar("lightning_sm_logged", default=None)


class SMPPrecisionMixin(_PrecisionBase):
    """What Lightning's precision plugin does differently with the library: the step's order, clipping, gradients' end.

    The closure runs before the optimizer's step, because AWS documents no closure for ``smp.DistributedOptimizer``.
    """

    strategy: "SMPMixin"
    scaler: Any = None

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Run the closure, clip, step and zero the gradients."""
        result = closure()
        if self.scaler is None:
            self._after_closure(model, optimizer)
            optimizer.step(**kwargs)
        else:
            self.scaler.unscale_(optimizer)
            self._after_closure(model, optimizer)
            self.scaler.step(optimizer, **kwargs)
            self.scaler.update()
        self.strategy.zero_gradients()
        return result

    def clip_grad_by_norm(self, optimizer: Any, clip_val: Any) -> None:
        """Clip by the norm of the whole model."""
        self.strategy.clip_by_norm(optimizer, float(clip_val))

    def clip_grad_by_value(self, optimizer: Any, clip_val: Any) -> None:
        """Clip each value, which no other rank needs to know."""
        self.strategy.check_clipping("value")
        super().clip_grad_by_value(optimizer, clip_val)


class SMPMixin(StrategyMixin):
    """Pipeline and tensor parallelism by AWS's library ``smdistributed.modelparallel`` 1.x (SMP v1).

    The one child of the LightningModule that has parameters becomes ``smp.DistributedModel``, and the optimizer
    ``smp.DistributedOptimizer``. Each ``training_step``, ``validation_step``, ``test_step`` and ``predict_step`` runs
    in ``@smp.step``, once for each microbatch of the batch; of what it returns and logs with ``self.log``, tensors of
    one number are averaged over the microbatches, and others concatenated. Data is distributed by the data-parallel
    rank. What ``configure_model`` makes is made within ``smp.model_creation``; a network from ``__init__`` is marked by
    ``smp.set_tensor_parallelism`` where ``tensor_parallel_degree`` is above 1.

    A checkpoint is one file, with the whole model and the whole state of the optimizer. With tensor parallelism or
    ``shard_optimizer_state`` the library gathers no such state: then it is the folder of ``smp.save_checkpoint``, which
    only the same degrees can load.

    Registered with Lightning as ``smp``. Needs Lightning 2.1 and an image with the library: AWS's PyTorch images 1.6
    to 2.0. It reads the files and variables that :class:`~lightning_sm.SMDDPStrategy` lists, and:

    ``mp_parameters``
      A hyperparameter that the SDK sets for ``distribution={"smdistributed": {"modelparallel": {...}}}``. AWS's library
      and, where the file of the hyperparameters is missing, this class read it from ``SM_HP_MP_PARAMETERS``, which the
      toolkit sets.

    ``MASTER_ADDR``, ``MASTER_PORT``
      Written, not read, before the library is initialized.

    Args:
        network: The attribute of the LightningModule that is partitioned; needed if several children have parameters,
            of which only one may be trained.
        **kwargs: ``process_group_backend``, ``nccl`` or ``gloo``, where the library initializes no group itself;
            ``cluster_environment``, an environment to use instead, which then determines ranks and sizes; the arguments
            of Lightning's ``DDPStrategy``, of which ``timeout`` has an effect; and those of ``smp.DistributedModel``,
            such as ``trace_device``.

    Raises:
        JobConfigError: ``mp_parameters`` is missing or malformed, or does not fit the world.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` or the library has another world.
        StrategyUnavailableError: The library is missing, or the model needs what it cannot do: manual optimization
            (and so several optimizers), ``torch.compile``, parameters outside the network.

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="gpu", strategy="smp")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMPStrategy(network="net", trace_device="cpu"))  # doctest: +SKIP
    """

    strategy_name = "smp"

    def __init__(self, network: Optional[str] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._network_name = network
        self.parameters = SMPParameters()
        self._smp: Any = None
        self._steps: Dict[str, Callable[..., Any]] = {}
        # The arguments of self.log by the step and the names that it logs.
        self._log_arguments: Dict[Tuple[str, Tuple[str, ...]], Dict[str, _Arguments]] = {}
        # Of a checkpoint; the library loads it when it has partitioned the model.
        self._optimizer_to_load: Optional[Dict[str, Any]] = None
        self._has_created_network = False
        # Named as in Lightning's FSDP2: whether a checkpoint is a folder to which every rank writes.
        self._save_distributed_checkpoint = False

    # --- the library and its world

    def setup_distributed(self) -> None:
        """Initialize the library, and the process group if the library has not done so."""
        given = read_mp_parameters(self._job)
        if not given:
            raise JobConfigError(
                "The strategy smp needs the hyperparameter mp_parameters, which this job does not have.",
                hint='Set distribution={"smdistributed": {"modelparallel": {"enabled": True, "parameters": {...}}}} of '
                "the estimator; without model parallelism, use the strategy smddp.",
            )
        self.parameters = SMPParameters.parse(given)
        self.parameters.check_world(self.world_size)
        self._prepare_group()
        self._set_main_address()
        self._smp = import_library(_MODULE, "smp", _WITHOUT_IT)
        if not self._smp.is_initialized():
            # The library prefers the variable that the toolkit sets.
            self._smp.init(given)
            if self.global_rank == 0:
                log.info("SMPStrategy: %s", self.parameters)
        super().setup_distributed()
        if (self._smp.rank(), self._smp.size()) != (self.global_rank, self.world_size):
            raise TopologyError(
                f"AWS's library has rank {self._smp.rank()} of {self._smp.size()}, and the launcher rank "
                f"{self.global_rank} of {self.world_size}.",
                hint="Start the job by mpi with processes_per_host, as the library's documentation has it.",
            )
        parameters = self.parameters
        self._save_distributed_checkpoint = (
            max(parameters.tensor_parallel_degree, parameters.sharded_data_parallel_degree) > 1
            or parameters.shard_optimizer_state
        )

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Replicas are the data-parallel processes; with ``prescaled_batch`` a tensor parallel group reads the same."""
        smp, prescaled = self._smp, self.parameters.prescaled_batch
        if prescaled:
            return {"num_replicas": smp.rdp_size(), "rank": smp.rdp_rank()}
        return {"num_replicas": smp.dp_size(), "rank": smp.dp_rank()}

    def process_dataloader(self, dataloader: Any) -> Any:
        """Check that each batch can be split into microbatches, also the last one.

        Raises:
            StrategyUnavailableError: It cannot.
        """
        size, count = getattr(dataloader, "batch_size", None), self.parameters.microbatches
        if isinstance(dataloader, torch.utils.data.DataLoader) and size is not None:
            try:
                rest = 0 if dataloader.drop_last else len(dataloader.sampler) % size  # type: ignore[arg-type]
            except TypeError:  # a stream, whose length is not known
                rest = 0
            if size % count or rest % count:
                what = f"batch_size={size}" if size % count else f"The last batch has {rest} samples, which"
                raise StrategyUnavailableError(
                    f"{what} cannot be split into {count} microbatches.",
                    hint="Set drop_last=True of the DataLoader, and a batch_size that microbatches of mp_parameters "
                    "divides.",
                )
        return super().process_dataloader(dataloader)

    # --- the precision

    @property
    def precision_plugin(self) -> Any:
        """Lightning's plugin for the precision, in the form that the library needs."""
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, precision_plugin: Any) -> None:
        self._precision_plugin = None if precision_plugin is None else self._adapted(precision_plugin)

    def _adapted(self, plugin: Any) -> Any:
        bases = {"32-true": "Precision", "16-mixed": "MixedPrecision"}
        base = bases.get(plugin.precision)
        if base is None or not _lightning.has_base(type(plugin), base):
            raise StrategyUnavailableError(
                f"The strategy smp cannot train with {type(plugin).__name__} of precision {plugin.precision}.",
                hint="Use precision 32-true, 16-mixed, or 32-true with fp16 of mp_parameters, which is the library's "
                "own half precision; bf16 of mp_parameters needs sharded data parallelism.",
            )
        cls: Any = _lightning.namespaced_class(
            self.namespace, f"SMP{base}", f"{__name__}:SMPPrecisionMixin", f"plugins:{base}"
        )
        adapted = cls() if base == "Precision" else cls("16-mixed", plugin.device)
        adapted.strategy = self
        return adapted

    # --- the model and its optimizer

    @contextlib.contextmanager
    def model_sharded_context(self) -> Iterator[None]:
        """Let ``configure_model`` make layers for the library: for tensor parallelism, and in its precision."""
        self._has_created_network = not self._candidates()
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self._half or "", torch.get_default_dtype())
        tensor_parallelism = self.parameters.tensor_parallel_degree > 1
        with self._smp.model_creation(tensor_parallelism=tensor_parallelism, dtype=dtype):
            yield

    @property
    def _half(self) -> Optional[str]:
        """The name of the library's own precision, if it trains in one."""
        return next((name for name in ("fp16", "bf16") if getattr(self.parameters, name)), None)

    def setup(self, trainer: Any) -> None:
        """Wrap the network and the optimizer."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self._check_model()
        if self._half is None and self.precision_plugin.precision == "16-mixed":
            self.precision_plugin.scaler = self._smp.amp.GradScaler()
        elif self._half is not None and self.precision_plugin.precision != "32-true":
            raise StrategyUnavailableError(
                f"mp_parameters has {self._half}, and the Trainer precision={self.precision_plugin.precision}.",
                hint="Leave one of them out.",
            )
        self._wrap_network(trainer)
        if trainer.state.fn == "fit":
            self.setup_optimizers(trainer)
            self._wrap_optimizer()
        self.setup_precision_plugin()

    def _check_model(self) -> None:
        """Refuse what cannot work with the library.

        Raises:
            StrategyUnavailableError: The model or the ``Trainer`` needs it.
        """
        module: Any = self.lightning_module
        compiled = [
            name
            for name, child in module.named_modules()
            if type(child).__name__ == "OptimizedModule" or getattr(child, "_compiled_call_impl", None) is not None
        ]
        problems = {
            "torch.compile": bool(compiled) or getattr(module, "_compiler_ctx", None) is not None,
            "manual optimization (automatic_optimization=False), and so with several optimizers": (
                not module.automatic_optimization
            ),
            "Trainer(sync_batchnorm=True)": self._layer_sync is not None,
            "a ddp_comm_hook": self._ddp_comm_hook is not None,
            "parameters of the LightningModule outside its network": any(
                True for _ in module.named_parameters(recurse=False)
            ),
        }
        for what, is_there in problems.items():
            if is_there:
                raise StrategyUnavailableError(
                    f"The strategy smp cannot train with {what}: the library runs the network in parts.",
                    hint="Leave it out, or train with FSDP2 (SMDDPModelParallelStrategy) on an image with torch 2.4.",
                )

    def _candidates(self) -> Dict[str, Any]:
        children = self.lightning_module.named_children()  # type: ignore[union-attr]
        return {name: child for name, child in children if any(True for _ in child.parameters())}

    def _network(self) -> Tuple[str, Any]:
        """The name of the attribute that is partitioned, and its module.

        Raises:
            StrategyUnavailableError: It is not the only child with parameters.
        """
        found = self._candidates()
        name = self._network_name or next(iter(found), "network")
        if list(found) != [name]:
            raise StrategyUnavailableError(
                f"The strategy smp partitions one attribute of the LightningModule, {name}, and parameters are in: "
                f"{', '.join(found) or 'none'}.",
                hint="Put all layers into one module, such as self.network = Network(...), and call that in the steps.",
            )
        return name, found[name]

    def _wrap_network(self, trainer: Any) -> None:
        name, network = self._network()
        if not isinstance(network, self._smp.DistributedModel):  # of an earlier fit: it can be wrapped once only
            if self.parameters.tensor_parallel_degree > 1 and not self._has_created_network:
                self._smp.set_tensor_parallelism(network, True)
            passes = int(trainer.accumulate_grad_batches)
            network = self._smp.DistributedModel(network, **{**self._ddp_kwargs, "backward_passes_per_step": passes})
            network.lightning_sm_passes = passes
            setattr(self.lightning_module, name, network)
        # Also in the fit of another strategy, it is what the library was told.
        self._passes: int = network.lightning_sm_passes
        self.model_to_device()

    def _wrap_optimizer(self) -> None:
        # Lightning refuses several in automatic optimization.
        (optimizer,) = self.optimizers
        loss_scale = {"static_loss_scale": None, "dynamic_loss_scale": True} if self.parameters.fp16 else {}
        wrapped = self._smp.DistributedOptimizer(optimizer, **loss_scale)
        if self._half is None:
            # A scheduler that the model has made changes the learning rates of these groups.
            wrapped.param_groups = optimizer.param_groups
        # The step makes gradients before Lightning zeroes them (loops/optimization/closure.py).
        self._zero_grad = ReplacedMethod(wrapped, "zero_grad", lambda original, *args, **kwargs: None)
        self.optimizers = [wrapped]
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Zero the gradients, after a step of the optimizer."""
        self._zero_grad.original()

    def clip_by_norm(self, optimizer: Any, max_norm: float) -> None:
        """Clip the gradients by the norm over all partitions, as ``torch.nn.utils.clip_grad_norm_`` does with one."""
        self.check_clipping("norm")
        if self._half is not None:
            optimizer.clip_master_grads(max_norm)
            return
        network = self._network()[1]
        local = [parameter for parameter in network.local_parameters() if parameter.grad is not None]
        tensor_parallel = self.parameters.tensor_parallel_degree
        total = torch.zeros((), device=self.root_device)
        for parameter in local:
            square = parameter.grad.detach().float().pow(2).sum().to(total.device)
            # A parameter that is not distributed is on each rank of its tensor parallel group.
            is_whole = tensor_parallel > 1 and not network.is_distributed_parameter(parameter)
            total += square / tensor_parallel if is_whole else square
        if self.parameters.mp_size > 1:
            group = self._smp.get_mp_process_group() if self.parameters.ddp else None
            torch.distributed.all_reduce(total, group=group)
        factor = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for parameter in local:
            parameter.grad.mul_(factor.to(parameter.grad.device))

    def check_clipping(self, algorithm: str) -> None:
        """Refuse to clip where the library does so itself.

        Raises:
            StrategyUnavailableError: It does.
        """
        if self.parameters.sharded_data_parallel_degree > 1:
            raise StrategyUnavailableError(
                "Trainer(gradient_clip_val=...) has no effect with sharded_data_parallel_degree of mp_parameters.",
                hint="Leave it out, and set sdp_gradient_clipping of mp_parameters, by default 1.0.",
            )
        if algorithm == "value" and self._half is not None:
            raise StrategyUnavailableError(
                f"gradient_clip_algorithm='value' cannot be used with {self._half} of mp_parameters.",
                hint="Clip by the norm.",
            )

    # --- the steps

    def on_train_start(self) -> None:
        """Check that no gradients are left over when the optimizer steps.

        Raises:
            StrategyUnavailableError: The library would not reduce the gradients of the last batches of an epoch.
        """
        super().on_train_start()
        trainer: Any = self.lightning_module.trainer  # type: ignore[union-attr]
        batches, passes = trainer.num_training_batches, self._passes
        if passes > 1 and (batches == float("inf") or batches % passes):
            raise StrategyUnavailableError(
                f"An epoch has {batches} batches and accumulate_grad_batches={passes} does not divide them: the "
                "library would not reduce the gradients of the last ones.",
                hint="Set limit_train_batches to a multiple of accumulate_grad_batches.",
            )

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step and its backward pass for each microbatch."""
        trainer: Any = self.lightning_module.trainer  # type: ignore[union-attr]
        if int(trainer.accumulate_grad_batches) != self._passes:
            raise StrategyUnavailableError(
                f"accumulate_grad_batches is {trainer.accumulate_grad_batches}, and the network was partitioned for "
                f"{self._passes}.",
                hint="Accumulate over the same number of batches in all epochs.",
            )
        return self._run("training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step for each microbatch."""
        return self._run("validation_step", *args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step for each microbatch."""
        return self._run("test_step", *args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step for each microbatch."""
        return self._run("predict_step", *args, **kwargs)

    def backward(self, closure_loss: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the hooks around a backward pass, which the step has made already."""
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        return self.precision_plugin.post_backward(loss, self.lightning_module)

    def _run(self, hook: str, batch: Any, *rest: Any) -> Any:
        module: Any = self.lightning_module
        if hook not in self._steps:
            self._steps[hook] = self._decorated(hook)
        arguments: Dict[str, _Arguments] = {}

        def record(original: Callable[..., None], name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            logged = _logged.get()
            if logged is None:
                original(name, value, *args, **kwargs)
            else:
                logged[name] = self._loggable(name, value)
                arguments[name] = args, kwargs

        replaced = ReplacedMethod(module, "log", record)
        try:
            output, logged = self._steps[hook](self._network()[1], batch, rest)
        finally:
            replaced.undo()
        for name, (args, kwargs) in self._same_arguments(hook, tuple(logged), arguments).items():
            module.log(name, _combined(logged[name]), *args, **kwargs)
        return _combined(output)

    def _decorated(self, hook: str) -> Callable[..., Any]:
        # AWS's library reads the names of the arguments, which a functools.partial would not have.
        @self._smp.step()  # type: ignore[untyped-decorator]
        def step(network: Any, batch: Any, rest: Tuple[Any, ...]) -> Any:
            return self._microbatch(hook, network, batch, rest)

        return step  # type: ignore[no-any-return]

    def _microbatch(self, hook: str, network: Any, batch: Any, rest: Tuple[Any, ...]) -> Tuple[Any, Dict[str, Any]]:
        """A step of a microbatch: what it returns, and what it logs. The library may call it on one rank of many."""
        logged: Dict[str, Any] = {}
        token = _logged.set(logged)
        plugin = self.precision_plugin
        try:
            with getattr(plugin, _CONTEXTS[hook])():
                output = getattr(self.lightning_module, hook)(batch, *rest)
        finally:
            _logged.reset(token)
        if hook == "training_step":
            loss = output.get("loss") if isinstance(output, Mapping) else output
            if loss is None:
                raise StrategyUnavailableError(
                    "training_step returned no loss, which the strategy smp needs from each batch.",
                    hint="Return a loss of zero that depends on the network's output.",
                )
            loss = loss / self._passes
            network.backward(loss if plugin.scaler is None else plugin.scaler.scale(loss))
        return output, logged

    def _loggable(self, name: str, value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, int, float)):
            raise StrategyUnavailableError(
                f"self.log({name!r}) is given a {type(value).__name__}, which sees microbatches on one rank only.",
                hint="Log a number or a tensor, or update a metric of torchmetrics outside the steps.",
            )
        return torch.as_tensor(value, dtype=None if isinstance(value, torch.Tensor) else torch.float32).detach()

    def _same_arguments(
        self, hook: str, names: Tuple[str, ...], own: Mapping[str, _Arguments]
    ) -> Dict[str, _Arguments]:
        """The arguments of ``self.log``, also on a rank on which the library does not run the step's Python code."""
        if self.parameters.pipeline_parallel_degree == 1:
            return {name: own[name] for name in names}
        if (hook, names) not in self._log_arguments:
            group = self._smp.get_mp_process_group() if self.parameters.ddp else None
            found = [dict(own)]
            torch.distributed.broadcast_object_list(
                found, src=min(self._smp.get_mp_group()), group=group, device=self.root_device
            )
            self._log_arguments[hook, names] = {name: found[0][name] for name in names}
        return self._log_arguments[hook, names]

    # --- checkpoints

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Tensor parallelism replaces layers when the network is wrapped; the library loads its own folders then."""
        return self._save_distributed_checkpoint

    def lightning_module_state_dict(self) -> Dict[str, Any]:
        """The whole model, with the names of the model without the library. Collective within a replica.

        For a folder of the library it is what is outside the network.
        """
        module: Any = self.lightning_module
        name, network = self._network()
        own = {}
        if not self._save_distributed_checkpoint:
            is_wrapped = isinstance(network, self._smp.DistributedModel)
            source = network if not is_wrapped or network.partitioned else network.module
            own = {f"{name}.{key}": value for key, value in source.state_dict().items() if key != "_smp_is_partial"}
        with _without(module, name):
            return {**module.state_dict(), **own}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the whole model into the network, wrapped or not, and the rest of the LightningModule."""
        module: Any = self.lightning_module
        (name, network), state_dict = self._network(), checkpoint["state_dict"]
        own = {key[len(name) + 1 :]: value for key, value in state_dict.items() if key.startswith(f"{name}.")}
        if isinstance(network, self._smp.DistributedModel):
            if own or not self._save_distributed_checkpoint:  # of a folder, the library has loaded it
                network.load_state_dict({**own, "_smp_is_partial": False})
        else:
            network.load_state_dict(own, strict=strict)
        with _without(module, name):
            others = {key: value for key, value in state_dict.items() if not key.startswith(f"{name}.")}
            module.load_state_dict(others, strict=strict)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether the state of the optimizer is in Lightning's checkpoint."""
        return not self._save_distributed_checkpoint

    def optimizer_state(self, optimizer: Any) -> Dict[str, Any]:
        """The whole state of the optimizer. Collective within a replica."""
        if self._save_distributed_checkpoint:
            return {}
        if self._optimizer_to_load is not None and not self._network()[1].partitioned:
            return self._optimizer_to_load
        self._optimizer_to_load = None
        return super().optimizer_state(optimizer)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the whole state of the optimizer, which takes effect when the library has partitioned the model."""
        (self._optimizer_to_load,) = checkpoint["optimizer_states"]
        self.optimizers[0].load_state_dict(self._optimizer_to_load)

    def save_checkpoint(self, checkpoint: Dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save one file, or the library's folder with a part of each rank."""
        if not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        content = {name: value for name, value in checkpoint.items() if name != "optimizer_states"}
        self._smp.save_checkpoint(
            os.fspath(filepath),
            tag=_TAG,
            partial=True,
            model=self._network()[1],
            optimizer=self.optimizers[0],
            user_content=content,
        )

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """Load one file, or let the library load its folder into the wrapped model and optimizer."""
        if not os.path.isdir(checkpoint_path):
            return super().load_checkpoint(checkpoint_path, *args, **kwargs)
        options = {"tag": _TAG, "partial": True, "load_optimizer": bool(self.optimizers)}
        return dict(self._smp.resume_from_checkpoint(os.fspath(checkpoint_path), **options))


# The library names the parts of a checkpoint by it.
_TAG = "lightning"


@contextlib.contextmanager
def _without(module: Any, name: str) -> Iterator[None]:
    """Take a child out of its module for a while."""
    child = getattr(module, name)
    setattr(module, name, None)
    try:
        yield
    finally:
        setattr(module, name, child)


def _combined(value: Any) -> Any:
    """What a step returns for a whole batch: means of numbers, and concatenated tensors."""
    if isinstance(value, Mapping):
        return {key: _combined(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_combined(each) for each in value)
    if not hasattr(value, "reduce_mean"):
        return value
    return value.reduce_mean() if value.outputs[0].dim() == 0 else value.concat()
