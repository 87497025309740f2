"""``smp.amp.GradScaler`` of the stand-in, with the methods of torch's that are documented."""

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import group, state


class GradScaler:
    """Agrees on infinite gradients over all ranks of a replica."""

    initial = 2.0**16

    def __init__(self, init_scale=None, growth_interval=2000):
        self._scale, self._interval, self._good = init_scale or self.initial, growth_interval, 0
        self._infinite = None

    def scale(self, tensor):
        return tensor * self._scale

    def get_scale(self):
        return self._scale

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
        self._good = 0 if self._infinite else self._good + 1
        if self._infinite:
            self._scale /= 2
        elif self._good % self._interval == 0:
            self._scale *= 2
        self._infinite = None

    def state_dict(self):
        return {"scale": self._scale, "good": self._good}

    def load_state_dict(self, state_dict):
        self._scale, self._good = state_dict["scale"], state_dict["good"]
