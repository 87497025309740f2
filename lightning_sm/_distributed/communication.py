"""What processes of DDP send each other: the options of ``SMDDPStrategy``, and the hooks that they stand for."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Union

from lightning_sm.errors import HyperparameterError, StrategyUnavailableError

__all__ = [
    "AUTO",
    "WARMUP_STEPS",
    "Communication",
    "CommunicationOptions",
    "OuterOptimizer",
    "bucket_hook",
    "sum_error",
]

#: Optimizer steps with plain DDP before PowerSGD or local steps begin; torch's default for PowerSGD.
WARMUP_STEPS = 1000
#: The rank of PowerSGD's matrices.
POWERSGD_RANK = 4
#: Of the outer optimizer of local steps, where one of them is set: those of DiLoCo.
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
#: Chosen from what the first steps show.
AUTO = "auto"
_TYPES = ("bf16", "fp16")
_COMPRESSIONS = (*_TYPES, "powersgd", AUTO)
_LIGHTNINGS = ("ddp_comm_hook", "ddp_comm_state", "ddp_comm_wrapper", "model_averaging_period")


class OuterOptimizer(NamedTuple):
    """SGD with Nesterov's momentum on the averaged change of weights.

    Args:
        lr: The learning rate; with 1, and without momentum, weights are just averaged.
        momentum: From 0 to less than 1.
    """

    lr: float
    momentum: float

    def __str__(self) -> str:
        return f"an outer SGD of learning rate {self.lr:g} and momentum {self.momentum:g}"


@dataclass(frozen=True)
class CommunicationOptions:
    """What is sent in a step of DDP; without options, all gradients as they are.

    >>> CommunicationOptions("powersgd", powersgd_rank=2).describe()
    'PowerSGD of rank 2 approximates gradients after 1000 steps; what is learned differs from plain DDP'

    Args:
        gradient_compression: ``bf16``, ``fp16``, ``powersgd``, ``auto`` or ``None``.
        powersgd_rank: The rank of PowerSGD's matrices.
        local_steps: Optimizer steps after which the weights are averaged, instead of gradients in each step.
        communication_warmup_steps: Optimizer steps with plain DDP before PowerSGD or local steps begin.
        outer_lr: The learning rate of the outer optimizer, which takes the averaged change of weights as its gradient.
        outer_momentum: Its momentum (Nesterov's).
        bucket_cap_mb: The size of DDP's buckets in MiB, or ``auto``.
    """

    gradient_compression: Optional[str] = None
    powersgd_rank: Optional[int] = None
    local_steps: Optional[int] = None
    communication_warmup_steps: Optional[int] = None
    outer_lr: Optional[float] = None
    outer_momentum: Optional[float] = None
    bucket_cap_mb: Union[float, str, None] = None

    @property
    def rank(self) -> int:
        """The rank of PowerSGD's matrices."""
        return POWERSGD_RANK if self.powersgd_rank is None else self.powersgd_rank

    @property
    def warmup_steps(self) -> int:
        """Optimizer steps with plain DDP."""
        return WARMUP_STEPS if self.communication_warmup_steps is None else self.communication_warmup_steps

    @property
    def outer(self) -> Optional[OuterOptimizer]:
        """The outer optimizer of local steps; ``None`` if weights are just averaged."""
        if self.outer_lr is None and self.outer_momentum is None:
            return None
        return OuterOptimizer(
            OUTER_LR if self.outer_lr is None else self.outer_lr,
            OUTER_MOMENTUM if self.outer_momentum is None else self.outer_momentum,
        )

    @property
    def tunes_buckets(self) -> bool:
        """Whether the size of buckets is chosen from the first steps."""
        return self.bucket_cap_mb == AUTO

    @property
    def is_tuned(self) -> bool:
        """Whether the first steps are measured."""
        return self.gradient_compression == AUTO or self.tunes_buckets

    @property
    def keep_state(self) -> bool:
        """Whether steps depend on earlier ones with the same ``DistributedDataParallel``."""
        return self.gradient_compression == "powersgd" or self.local_steps is not None or self.is_tuned

    def describe(self) -> Optional[str]:
        """What is learned otherwise than with plain DDP, for the log; ``None`` without options."""
        what = None
        if self.gradient_compression == "powersgd":
            what = f"PowerSGD of rank {self.rank} approximates gradients after {self.warmup_steps} steps"
        elif self.gradient_compression in _TYPES:
            what = f"gradients are sent as {self.gradient_compression}, which rounds them"
        elif self.local_steps is not None:
            what = (
                f"after {self.warmup_steps} steps each process trains by itself, and weights are averaged every "
                f"{self.local_steps} steps"
            )
            if self.outer is not None:
                what = f"{what}, where {self.outer} takes their change"
        return what and f"{what}; what is learned differs from plain DDP"

    def smddp_problem(self, ddp_arguments: Mapping[str, Any]) -> Optional[str]:
        """Why AWS's SMDDP cannot be used with the options, or ``None``: what AWS does not document."""
        options = {
            "gradient_compression": self.gradient_compression,
            "local_steps": self.local_steps,
            "static_graph": ddp_arguments.get("static_graph"),
            "bucket_cap_mb=auto": self.tunes_buckets,
        }
        given = next((name for name, value in options.items() if value), None)
        return None if given is None else f"AWS does not document {given} for SMDDP"

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse options that make no sense or contradict each other.

        Args:
            arguments: The other arguments of the strategy.

        Raises:
            HyperparameterError: They do.
        """
        compression, local, outer = self.gradient_compression, self.local_steps, self.outer
        is_powersgd = compression == "powersgd"
        auto = "bucket_cap_mb=auto" if self.tunes_buckets else "gradient_compression=auto"
        outer_option = "outer_lr" if self.outer_lr is not None else "outer_momentum"
        warmup = f"communication_warmup_steps={self.communication_warmup_steps}"
        beside = next((name for name in _LIGHTNINGS if arguments.get(name) is not None), "")
        ours = auto if self.tunes_buckets else "gradient_compression" if compression else "local_steps"
        # Of each: whether it is one, what contradicts, why, and what to do.
        contradictions = (
            (
                compression not in (None, *_COMPRESSIONS),
                f"gradient_compression={compression!r}",
                "is unknown",
                f"It is one of {', '.join(_COMPRESSIONS)}.",
            ),
            (
                self.tunes_buckets and (is_powersgd or local is not None),
                f"{auto} with {'gradient_compression=powersgd' if local is None else 'local_steps'}",
                "cannot be: its later steps are not measured",
                "Set bucket_cap_mb.",
            ),
            (
                self.is_tuned and arguments.get("mixed_precision") is not None,
                f"{auto} with mixed_precision",
                "would wrap the model in it twice",
                "Set precision of the Trainer.",
            ),
            (
                self.powersgd_rank is not None and not is_powersgd,
                f"powersgd_rank={self.powersgd_rank}",
                f"has no meaning with gradient_compression={compression}",
                "Set gradient_compression to powersgd, or leave powersgd_rank out.",
            ),
            (
                self.rank < 1,
                f"powersgd_rank={self.powersgd_rank}",
                "is less than 1",
                "Take 1 to 4; more sends more.",
            ),
            (
                is_powersgd and bool(arguments.get("find_unused_parameters")),
                "find_unused_parameters with gradient_compression=powersgd",
                "makes weights not-a-number, as PowerSGD divides by the length of a gradient, and that of an unused "
                "parameter is 0",
                "Leave find_unused_parameters out, or set gradient_compression to bf16.",
            ),
            (
                local is not None and local < 2,
                f"local_steps={local}",
                "is less than 2",
                "Leave local_steps out for plain DDP.",
            ),
            (
                local is not None and compression is not None,
                f"local_steps with gradient_compression={compression}",
                "contradict each other: with local steps no gradients are sent",
                "Choose one of them.",
            ),
            (
                outer is not None and local is None,
                f"{outer_option}={getattr(self, outer_option)}",
                "has no meaning without local_steps",
                "Set local_steps, too.",
            ),
            (
                outer is not None and outer.lr <= 0,
                f"outer_lr={self.outer_lr}",
                "is not above 0",
                f"Take {OUTER_LR}; 1 without momentum just averages.",
            ),
            (
                outer is not None and not 0 <= outer.momentum < 1,
                f"outer_momentum={self.outer_momentum}",
                "is not from 0 to below 1",
                f"Take {OUTER_MOMENTUM}.",
            ),
            (
                self.communication_warmup_steps is not None and local is None and not is_powersgd,
                warmup,
                "has no meaning without local_steps and PowerSGD",
                "Leave communication_warmup_steps out, or set local_steps or gradient_compression=powersgd.",
            ),
            (
                is_powersgd and self.warmup_steps < 2,
                warmup,
                "is less than 2: DDP arranges its buckets in the first two",
                "Set it to 2 or more.",
            ),
            (self.warmup_steps < 0, warmup, "is less than 0", "Set it to 0 or more."),
            (
                bool(beside) and (compression is not None or local is not None or self.tunes_buckets),
                f"{ours} beside {beside}",
                "would be two hooks of one model",
                f"Leave {beside} or {ours} out.",
            ),
        )
        for is_wrong, what, why, hint in contradictions:
            if is_wrong:
                raise HyperparameterError(f"SMDDPStrategy: {what} {why}.", hint=hint)


class Communication:
    """What is sent in the steps of one fit, and what of it a restarted job needs; here plain DDP.

    Args:
        model: The ``DistributedDataParallel`` of the fit; ``None`` outside a fit.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def register(self, compress: Callable[[Any], Any]) -> None:
        """Send each bucket of gradients by a function that takes it and returns a future of its gradients."""
        # DDP checks a hook's annotations, and its name: bf16_compress_hook it refuses on CPUs (torch before 2.15).
        self.model.register_comm_hook(None, lambda state, bucket: compress(bucket))

    def send_as(self, name: str) -> None:
        """Send gradients in a smaller type: torch's ``bf16_compress_hook`` or ``fp16_compress_hook``. Collective.

        Args:
            name: ``bf16`` or ``fp16``.

        Raises:
            StrategyUnavailableError: The backend cannot sum that type (gloo and bf16 in older torch).
        """
        import torch

        error = sum_error(name, next(self.model.parameters()).device)
        if error is not None:
            raise StrategyUnavailableError(
                f"gradient_compression={name}: {torch.distributed.get_backend()} of torch {torch.__version__} "
                f"cannot sum {name}: {error}",
                hint="Leave gradient_compression out, or use a newer torch.",
            ) from error
        self.register(bucket_hook(name))

    def setup(self, strategy: Any) -> None:
        """Check what the strategy holds after its optimizers have been made."""

    def before_step(self) -> None:
        """Act before an optimizer step, on all processes."""

    def after_step(self) -> None:
        """Act after an optimizer step, on all processes."""

    def average_weights(self) -> None:
        """Make the weights of all processes equal. Collective."""

    def average_state_dict(self, state_dict: Dict[str, Any]) -> Dict[str, Any]:
        """A state dict of the model with the weights that :meth:`average_weights` would make. Collective."""
        return state_dict

    def state(self) -> Optional[Dict[str, Any]]:
        """What this process needs to continue, for :meth:`load`; ``None`` if nothing."""
        return None

    def load(self, state: Mapping[str, Any], is_same_world: bool) -> None:
        """Continue with what :meth:`state` returned, and without anything of the steps until now.

        Args:
            state: The state of this process, or of any other if ``is_same_world`` is false; empty to begin anew.
            is_same_world: Whether as many processes train as did.
        """


def bucket_hook(name: Optional[str]) -> Callable[[Any], Any]:
    """Return torch's hook that sends a bucket of gradients as ``bf16`` or ``fp16``, or, for ``None``, as they are."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    torchs_hook: Any = {
        None: default_hooks.allreduce_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "fp16": default_hooks.fp16_compress_hook,
    }[name]
    return partial(torchs_hook, None)


def sum_error(name: str, device: Any) -> Optional[RuntimeError]:
    """Why the backend of this process cannot sum numbers of ``bf16`` or ``fp16``; ``None`` if it can. Collective."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    try:
        torch.distributed.all_reduce(torch.zeros(1, dtype=dtype, device=device))
    except RuntimeError as error:
        return error
    return None
