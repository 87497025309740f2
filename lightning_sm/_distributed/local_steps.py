"""``LocalSteps``: processes train by themselves and average their weights every few steps (post-local SGD, DiLoCo)."""

from functools import partial
from typing import Any, Dict, Mapping, Optional, Sequence

from lightning_sm._distributed.communication import Communication, OuterOptimizer
from lightning_sm._lightning.trainer import AVERAGING, callbacks_named
from lightning_sm.errors import HyperparameterError

__all__ = ["LocalSteps"]


class _OuterSteps:
    """The weights after the last average, and torch's SGD on them, whose gradient is how far they were from the next.

    Args:
        weights: The weights after the last average, or before the first local step.
        outer: The outer optimizer.
    """

    def __init__(self, weights: Sequence[Any], outer: OuterOptimizer) -> None:
        import torch

        self.weights = [each.detach().clone() for each in weights]
        self._sgd = torch.optim.SGD(self.weights, lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0)

    def step(self, averages: Sequence[Any]) -> None:
        """Move the weights towards, or beyond, the averages that local steps have led to."""
        for weights, average in zip(self.weights, averages):
            weights.grad = weights - average
        self._sgd.step()
        self._sgd.zero_grad()

    def state(self) -> Dict[str, Any]:
        """The weights and the momentum."""
        return {"weights": self.weights, "momentum": self._sgd.state_dict()["state"]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue with the momentum of :meth:`state`; its weights were given to the constructor."""
        self._sgd.load_state_dict({"state": state["momentum"], "param_groups": self._sgd.state_dict()["param_groups"]})


class LocalSteps(Communication):
    """Post-local SGD (Lin et al. 2018), by torch's ``post_localSGD_hook`` without a reduction within hosts.

    With an outer optimizer it is DiLoCo (Douillard et al. 2023, arXiv 2311.08105): each ``period`` steps that takes the
    averaged change of the weights as its gradient, and all processes go on with what it makes of them.

    Between two averages the weights of processes differ. So a checkpoint of any callback gets their average, and the
    job's own saves hold weights and optimizer of each process, so that a restart continues from these.

    Args:
        model: The ``DistributedDataParallel`` of the fit.
        period: Optimizer steps between two averages.
        warmup_steps: Optimizer steps with plain DDP before.
        outer: The outer optimizer; ``None`` takes the average as it is.
    """

    def __init__(self, model: Any, period: int, warmup_steps: int, outer: Optional[OuterOptimizer] = None) -> None:
        super().__init__(model)
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local

        self._period, self._warmup_steps = period, warmup_steps
        self._steps = 0
        self._differ = False
        self._outer = outer
        self._outer_steps: Optional[_OuterSteps] = None
        self._optimizer: Any = None
        self._parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        self._state: Any = post_local.PostLocalSGDState(
            None, None, start_localSGD_iter=warmup_steps, post_local_gradient_allreduce=False
        )
        self.register(partial(post_local.post_localSGD_hook, self._state))

    def setup(self, strategy: Any) -> None:
        """Check the optimizer, the precision and the callbacks.

        Raises:
            HyperparameterError: There is not one optimizer, it is sharded, or each process would scale its own loss or
                average its own weights.
        """
        optimizers = strategy.optimizers
        averaging = callbacks_named(strategy.lightning_module.trainer, *AVERAGING)
        problem = None
        if len(optimizers) != 1:
            problem = f"the model has {len(optimizers)} optimizers, whose steps cannot be told apart"
        elif type(optimizers[0]).__name__ == "ZeroRedundancyOptimizer":
            problem = "ZeroRedundancyOptimizer keeps one state for all processes"
        elif getattr(strategy.precision_plugin, "scaler", None) is not None:
            problem = "with precision=16-mixed each process would scale its loss, and skip steps, by itself"
        elif averaging:
            problem = f"{type(averaging[0]).__name__} would average the weights of each process by itself"
        if problem is not None:
            raise HyperparameterError(
                f"SMDDPStrategy: local_steps={self._period} cannot be used: {problem}.",
                hint="Leave local_steps out and set gradient_compression=bf16, or use one plain optimizer, "
                "precision=bf16-mixed and no averages.",
            )
        self._optimizer = optimizers[0]

    def before_step(self) -> None:
        """Keep the weights with which the first local step begins, for the outer optimizer."""
        if self._outer is not None and self._outer_steps is None and self._steps >= self._warmup_steps:
            self._outer_steps = _OuterSteps(self._parameters, self._outer)

    def after_step(self) -> None:
        """Count the step, and average the weights every ``period`` steps."""
        self._steps += 1
        # The hook counts backward passes, of which a closure may make several in a step.
        self._state.iter = self._steps
        local = self._steps - self._warmup_steps
        if local <= 0:
            return
        self._differ = True
        if local % self._period == 0:
            self.average_weights()
            if self._outer_steps is not None:
                self._outer_steps.step(self._parameters)
                self._set_weights(self._outer_steps.weights)

    def average_weights(self) -> None:
        """Replace the weights of all processes by their average, if they differ."""
        if self._differ:
            averages = self._averages()
            self._set_weights([averages[parameter] for parameter in self._parameters])
            self._differ = False

    def _set_weights(self, weights: Sequence[Any]) -> None:
        for parameter, own in zip(self._parameters, weights):
            parameter.data.copy_(own)

    def average_state_dict(self, state_dict: Dict[str, Any]) -> Dict[str, Any]:
        """The state dict with averages in the place of the weights, which stay as they are."""
        if not self._differ:
            return state_dict
        averages = {parameter.data_ptr(): average for parameter, average in self._averages().items()}
        # A plain copy would lose the attributes of torch's state dicts.
        for name, value in state_dict.items():
            average = averages.get(value.data_ptr()) if hasattr(value, "data_ptr") else None
            if average is not None and average.shape == value.shape:
                state_dict[name] = average
        return state_dict

    def _averages(self) -> Dict[Any, Any]:
        """The average of each parameter. Collective."""
        from torch.distributed.algorithms.model_averaging.utils import average_parameters

        averages = [parameter.detach() for parameter in self._parameters]
        average_parameters(iter(averages), None)  # type: ignore[arg-type]
        # Copies, as checkpoints of views would hold all of the flat tensor.
        return {parameter: average.clone() for parameter, average in zip(self._parameters, averages)}

    def state(self) -> Dict[str, Any]:
        """The number of steps; after the warm-up also this process's weights and the states of its optimizers."""
        state: Dict[str, Any] = {"steps": self._steps}
        if self._steps > self._warmup_steps:
            weights = [parameter.detach() for parameter in self._parameters] if self._differ else []
            state.update(weights=weights, optimizer=self._optimizer.state_dict()["state"])
        if self._outer_steps is not None:
            state["outer"] = self._outer_steps.state()
        return state

    def load(self, state: Mapping[str, Any], is_same_world: bool) -> None:
        """Continue; with another number of processes from the average of the weights."""
        self._steps = self._state.iter = state.get("steps", 0)
        self._differ, self._outer_steps = False, None
        # It is the same on all processes, however many there were.
        if self._outer is not None and "outer" in state:
            device = self._parameters[0].device
            self._outer_steps = _OuterSteps([each.to(device) for each in state["outer"]["weights"]], self._outer)
            self._outer_steps.load(state["outer"])
        if not is_same_world or "optimizer" not in state:
            return
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        self._differ = bool(state["weights"])
        self._set_weights(state["weights"])
