"""``smp.DistributedOptimizer`` of the stand-in."""

from typing import Any

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import SMPError, calls, group, state, tp_size


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps the optimizer; under ``fp16`` it holds master weights in single precision and scales the loss."""

    initial = 2.0**32

    def __init__(self, optimizer, static_loss_scale=1.0, dynamic_loss_scale=False):
        if state.model is None:
            raise SMPError("SMP stand-in: the optimizer must be made after DistributedModel")
        known = set(state.model.parameters())
        if not all(each in known for entry in optimizer.param_groups for each in entry["params"]):
            raise SMPError("SMP stand-in: the optimizer has parameters that are not the model's")
        calls.append(("DistributedOptimizer", dynamic_loss_scale))
        self.optimizer = optimizer
        self.loss_scale = self.initial if dynamic_loss_scale else (static_loss_scale or 1.0)
        self._queued: Any = None
        self._masters = {}
        if state.cfg.fp16:
            for entry in optimizer.param_groups:
                halves = list(entry["params"])
                entry["params"] = [torch.nn.Parameter(each.detach().float()) for each in halves]
                self._masters.update(zip(entry["params"], halves))
        state.optimizer = self

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        self.optimizer.param_groups = groups

    @property
    def state(self):
        return self.optimizer.state

    def zero_grad(self, set_to_none=True):
        for parameter in state.model.parameters():
            parameter.grad = None
        for master in self._masters:
            master.grad = None

    def _fill_masters(self):
        """Unscaled gradients in single precision, once in a step."""
        if self._masters and all(master.grad is None for master in self._masters):
            for master, half in self._masters.items():
                master.grad = None if half.grad is None else half.grad.float() / self.loss_scale

    def clip_master_grads(self, max_norm):
        self._fill_masters()
        local = set(state.model.local_parameters())
        total = torch.zeros(())
        for master, half in self._masters.items():
            if half in local and master.grad is not None:
                whole = tp_size() > 1 and not state.model.is_distributed_parameter(half)
                total += master.grad.pow(2).sum() / (tp_size() if whole else 1)
        dist.all_reduce(total, group=group("mp"))
        factor = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for master in self._masters:
            if master.grad is not None:
                master.grad *= factor
        return total.sqrt()

    def step(self, closure=None):
        if closure is not None:
            raise SMPError("SMP stand-in: no closure is documented for DistributedOptimizer.step")
        if not state.model.partitioned:
            raise SMPError("SMP stand-in: the optimizer steps before the first smp.step")
        if not self._masters:
            self.optimizer.step()
        else:
            self._fill_masters()
            self.optimizer.step()
            with torch.no_grad():
                for master, half in self._masters.items():
                    half.copy_(master)
        state.model.share_parameters()

    # --- state

    def local_state_dict(self):
        own = self.optimizer.state_dict()
        masters = [master.detach().clone() for master in self._masters]
        return {**own, "masters": masters, "loss_scale": self.loss_scale, "_smp_is_partial": True}

    def state_dict(self):
        """The whole state. Collective: a rank of the replica that does not call it lets the others wait."""
        if tp_size() > 1:
            raise SMPError("SMP stand-in: no full optimizer state with tensor parallelism")
        own = self.local_state_dict()
        found: Any = [None] * dist.get_world_size(group("pp"))
        dist.all_gather_object(found, own["state"], group=group("pp"))
        whole = {index: value for each in found for index, value in each.items()}
        return {**own, "state": whole, "_smp_is_partial": False}

    def load_state_dict(self, state_dict):
        self._queued = state_dict
        if state.model.partitioned:
            self.load_queued()

    def load_queued(self):
        """Load what belongs to this rank's part."""
        queued, self._queued = self._queued, None
        if queued is None:
            return
        owned = {index for index, _ in enumerate(state.model.parameters()) if state.model._owns(index)}
        own = {index: value for index, value in queued["state"].items() if index in owned}
        self.optimizer.load_state_dict({"state": own, "param_groups": queued["param_groups"]})
        self.loss_scale = queued.get("loss_scale", self.loss_scale)
        with torch.no_grad():
            for master, value in zip(self._masters, queued.get("masters", ())):
                master.copy_(value)
