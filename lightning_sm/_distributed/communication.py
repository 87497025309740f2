"""What processes of DDP send each other: the options of ``SMDDPStrategy``, and the hooks that they stand for."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Mapping, Optional

from lightning_sm.errors import HyperparameterError, StrategyUnavailableError

__all__ = ["WARMUP_STEPS", "Communication", "CommunicationOptions", "SentAs"]

#: Optimizer steps with plain DDP before PowerSGD or local steps begin; torch's default for PowerSGD.
WARMUP_STEPS = 1000
#: The rank of PowerSGD's matrices.
POWERSGD_RANK = 4
_COMPRESSIONS = ("bf16", "fp16", "powersgd")
_LIGHTNINGS = ("ddp_comm_hook", "ddp_comm_state", "ddp_comm_wrapper", "model_averaging_period")


@dataclass(frozen=True)
class CommunicationOptions:
    """What is sent in a step of DDP; without options, all gradients as they are.

    >>> CommunicationOptions("powersgd", powersgd_rank=2).describe()
    'PowerSGD of rank 2 approximates gradients after 1000 steps; what is learned differs from plain DDP'

    Args:
        gradient_compression: ``bf16``, ``fp16``, ``powersgd`` or ``None``.
        powersgd_rank: The rank of PowerSGD's matrices.
        local_steps: Optimizer steps after which the weights are averaged, instead of gradients in each step.
        communication_warmup_steps: Optimizer steps with plain DDP before PowerSGD or local steps begin.
    """

    gradient_compression: Optional[str] = None
    powersgd_rank: Optional[int] = None
    local_steps: Optional[int] = None
    communication_warmup_steps: Optional[int] = None

    @property
    def rank(self) -> int:
        """The rank of PowerSGD's matrices."""
        return POWERSGD_RANK if self.powersgd_rank is None else self.powersgd_rank

    @property
    def warmup_steps(self) -> int:
        """Optimizer steps with plain DDP."""
        return WARMUP_STEPS if self.communication_warmup_steps is None else self.communication_warmup_steps

    @property
    def are_set(self) -> bool:
        """Whether anything else is sent than by plain DDP."""
        return self.gradient_compression is not None or self.local_steps is not None

    def describe(self) -> Optional[str]:
        """What is learned otherwise than with plain DDP, for the log; ``None`` without options."""
        if self.gradient_compression == "powersgd":
            what = f"PowerSGD of rank {self.rank} approximates gradients after {self.warmup_steps} steps"
        elif self.gradient_compression is not None:
            what = f"gradients are sent as {self.gradient_compression}, which rounds them"
        elif self.local_steps is not None:
            what = (
                f"after {self.warmup_steps} steps each process trains by itself, and weights are averaged every "
                f"{self.local_steps} steps"
            )
        else:
            return None
        return f"{what}; what is learned differs from plain DDP"

    def smddp_problem(self, ddp_arguments: Mapping[str, Any]) -> Optional[str]:
        """Why AWS's SMDDP cannot be used with the options, or ``None``: what AWS does not document."""
        options = {
            "gradient_compression": self.gradient_compression,
            "local_steps": self.local_steps,
            "static_graph": ddp_arguments.get("static_graph"),
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
        if self.gradient_compression not in (None, *_COMPRESSIONS):
            what = f"gradient_compression={self.gradient_compression!r}"
            _refuse(what, "is unknown", f"It is one of {', '.join(_COMPRESSIONS)}.")
        self._check_powersgd(arguments)
        self._check_local_steps()
        self._check_warmup()
        beside = next((name for name in _LIGHTNINGS if self.are_set and arguments.get(name) is not None), None)
        if beside is not None:
            ours = "gradient_compression" if self.gradient_compression else "local_steps"
            _refuse(f"{ours} beside {beside}", "would be two hooks of one model", f"Leave {beside} or {ours} out.")

    def _check_powersgd(self, arguments: Mapping[str, Any]) -> None:
        is_powersgd = self.gradient_compression == "powersgd"
        if self.powersgd_rank is not None and not is_powersgd:
            _refuse(
                f"powersgd_rank={self.powersgd_rank}",
                f"has no meaning with gradient_compression={self.gradient_compression}",
                "Set gradient_compression to powersgd, or leave powersgd_rank out.",
            )
        if self.rank < 1:
            _refuse(f"powersgd_rank={self.powersgd_rank}", "is less than 1", "Take 1 to 4; more sends more.")
        if is_powersgd and arguments.get("find_unused_parameters"):
            _refuse(
                "find_unused_parameters with gradient_compression=powersgd",
                "makes weights not-a-number, as PowerSGD divides by the length of a gradient, and that of an unused "
                "parameter is 0",
                "Leave find_unused_parameters out, or set gradient_compression to bf16.",
            )

    def _check_local_steps(self) -> None:
        if self.local_steps is None:
            return
        if self.local_steps < 2:
            _refuse(f"local_steps={self.local_steps}", "is less than 2", "Leave local_steps out for plain DDP.")
        if self.gradient_compression is not None:
            _refuse(
                f"local_steps with gradient_compression={self.gradient_compression}",
                "contradict each other: with local steps no gradients are sent",
                "Choose one of them.",
            )

    def _check_warmup(self) -> None:
        steps = self.communication_warmup_steps
        if steps is None:
            return
        if self.local_steps is None and self.gradient_compression != "powersgd":
            _refuse(
                f"communication_warmup_steps={steps}",
                "has no meaning without local_steps and PowerSGD",
                "Leave communication_warmup_steps out, or set local_steps or gradient_compression=powersgd.",
            )
        least = 0 if self.local_steps is not None else 2
        if steps < least:
            why = "DDP arranges its buckets in the first two" if least else "a number of steps"
            _refuse(
                f"communication_warmup_steps={steps}", f"is less than {least}: {why}", f"Set it to {least} or more."
            )


def _refuse(what: str, why: str, hint: str) -> None:
    raise HyperparameterError(f"SMDDPStrategy: {what} {why}.", hint=hint)


class Communication:
    """What is sent in the steps of one fit, and what of it a restarted job needs; here plain DDP.

    Args:
        model: The ``DistributedDataParallel`` of the fit.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def register(self, compress: Callable[[Any], Any]) -> None:
        """Send each bucket of gradients by a function that takes it and returns a future of its gradients."""
        # DDP checks a hook's annotations, and its name: bf16_compress_hook it refuses on CPUs (torch before 2.15).
        self.model.register_comm_hook(None, lambda state, bucket: compress(bucket))

    def setup(self, strategy: Any) -> None:
        """Check what the strategy holds after its optimizers have been made."""

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
        """Continue with what :meth:`state` returned.

        Args:
            state: The state of this process, or of any other if ``is_same_world`` is false.
            is_same_world: Whether as many processes train as did.
        """


class SentAs(Communication):
    """Gradients are sent in a smaller type: torch's ``bf16_compress_hook`` or ``fp16_compress_hook``.

    Args:
        model: The ``DistributedDataParallel`` of the fit.
        name: ``bf16`` or ``fp16``.

    Raises:
        StrategyUnavailableError: The backend cannot sum that type (gloo and bf16 in older torch).
    """

    def __init__(self, model: Any, name: str) -> None:
        super().__init__(model)
        import torch
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        torchs_hook: Any
        dtype, torchs_hook = {
            "bf16": (torch.bfloat16, default_hooks.bf16_compress_hook),
            "fp16": (torch.float16, default_hooks.fp16_compress_hook),
        }[name]
        device = next(model.parameters()).device
        try:
            dist.all_reduce(torch.zeros(1, dtype=dtype, device=device))
        except RuntimeError as error:
            raise StrategyUnavailableError(
                f"gradient_compression={name}: {dist.get_backend()} of torch {torch.__version__} cannot sum "
                f"{dtype}: {error}",
                hint="Leave gradient_compression out, or use a newer torch.",
            ) from error

        self.register(partial(torchs_hook, None))
