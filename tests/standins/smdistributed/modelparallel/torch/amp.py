"""``smp.amp.GradScaler`` of the stand-in, with the methods of torch's that are documented."""

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import group, state


class GradScaler:
    """Agrees on infinite gradients over all ranks of a replica. Not imitated: a scale that grows after 2000 steps."""

    initial = 2.0**16

    def __init__(self):
        self._scale, self._infinite = self.initial, None

    def scale(self, tensor):
        return tensor * self._scale

    def unscale_(self, optimizer):
        infinite = torch.zeros(1)
        for parameter in state.model.local_parameters():
            if parameter.grad is not None:
                parameter.grad /= self._scale
                infinite += float(not torch.isfinite(parameter.grad).all())
        dist.all_reduce(infinite, group=group("mp"))
        self._infinite = bool(infinite)

    def step(self, optimizer, **kwargs):
        if self._infinite is None:
            self.unscale_(optimizer)
        if not self._infinite:
            optimizer.step(**kwargs)

    def update(self):
        if self._infinite:
            self._scale /= 2
        self._infinite = None

    def state_dict(self):
        return {"scale": self._scale}

    def load_state_dict(self, state_dict):
        self._scale = state_dict["scale"]
