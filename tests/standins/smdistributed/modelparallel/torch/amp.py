"""``smp.amp.GradScaler`` of the stand-in, with the methods of torch's that are documented."""

from smdistributed.modelparallel.torch._state import state


class GradScaler:
    """Not imitated: what it does about infinite gradients, and a scale that grows after 2000 steps."""

    initial = 2.0**16

    def scale(self, tensor):
        return tensor * self.initial

    def unscale_(self, optimizer):
        for parameter in state.model.local_parameters():
            if parameter.grad is not None:
                parameter.grad /= self.initial

    def step(self, optimizer, **kwargs):
        optimizer.step(**kwargs)

    def update(self):
        pass
