"""``smp.DistributedModel`` of the stand-in."""

import torch
import torch.distributed as dist

from smdistributed.modelparallel.torch._state import (
    SMPError,
    calls,
    dp_size,
    group,
    pp_rank,
    pp_size,
    ranks_of,
    state,
    tp_rank,
    tp_size,
)


class DistributedModel(torch.nn.Module):
    """Wraps the one model of a script."""

    def __init__(self, module, trace_device="gpu", backward_passes_per_step=1):
        super().__init__()
        if state.model is not None:
            raise SMPError("SMP stand-in: only one model in a script can be wrapped with DistributedModel")
        if any(isinstance(each, torch.nn.parallel.DistributedDataParallel) for each in module.modules()):
            raise SMPError("SMP stand-in: DistributedDataParallel must not be used with DistributedModel")
        calls.append(("DistributedModel", backward_passes_per_step))
        state.model = self
        self.module = module.half() if state.cfg.fp16 else module
        self.partitioned = False
        self._passes_per_step, self._passes = backward_passes_per_step, 0
        self._earlier = {}
        if pp_size() == 1:
            self._partition()

    def _partition(self):
        with torch.no_grad():
            for value in (*self.module.parameters(), *self.module.buffers()):
                dist.broadcast(value, ranks_of("dp")[0], group("dp"))
        self.partitioned = True
        self.share_parameters()
        if state.optimizer is not None:
            state.optimizer.load_queued()

    # --- forward and backward

    def forward(self, *args, **kwargs):
        self._check_in_step("forward")
        if not state.cfg.fp16:
            return self.module(*args, **kwargs)
        half = [each.half() if torch.is_tensor(each) and each.is_floating_point() else each for each in args]
        return self.module(*half, **kwargs).float()

    def backward(self, loss):
        self._check_in_step("backward")
        scale = state.optimizer.loss_scale if state.cfg.fp16 else 1.0
        torch.autograd.backward(loss * scale)

    def _check_in_step(self, what):
        if not state.in_step and pp_size() > 1:
            raise SMPError(f"SMP stand-in: {what} of the model outside of smp.step")

    def begin_step(self):
        if not self.partitioned:
            self._partition()
        self._earlier = {parameter: parameter.grad for parameter in self.module.parameters()}
        for parameter in self.module.parameters():
            parameter.grad = None

    def end_step(self):
        """Send gradients to their owners, and average them when so many backward passes have been made."""
        made = torch.tensor([any(p.grad is not None for p in self.module.parameters())], dtype=torch.uint8)
        dist.broadcast(made, ranks_of("pp")[0], group("pp"))
        count = state.cfg.microbatches
        for index, parameter in enumerate(self.module.parameters()):
            grad, earlier = parameter.grad, self._earlier[parameter]
            parameter.grad = earlier
            if made and parameter.requires_grad:
                grad = torch.zeros_like(parameter) if grad is None else grad
                dist.broadcast(grad, ranks_of("pp")[0], group("pp"))
                if self._owns(index):
                    parameter.grad = grad / count if earlier is None else earlier + grad / count
        with torch.no_grad():
            for value in self.module.buffers():
                dist.broadcast(value, ranks_of("pp")[0], group("pp"))
        if not made:
            return
        self._passes += 1
        if self._passes % self._passes_per_step == 0:
            for index, parameter in enumerate(self.module.parameters()):
                if self._owns(index) and parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group("dp"))
                    parameter.grad /= dp_size()
                    if self.is_distributed_parameter(parameter):
                        parameter.grad = self._own_rows(parameter.grad)

    # --- parts

    def _owns(self, index):
        return index % pp_size() == pp_rank()

    def is_distributed_parameter(self, parameter):
        return tp_size() > 1 and parameter.dim() == 2 and parameter.size(0) % tp_size() == 0

    def _own_rows(self, value):
        rows = value.size(0) // tp_size()
        own = torch.zeros_like(value)
        own[tp_rank() * rows : (tp_rank() + 1) * rows] = value[tp_rank() * rows : (tp_rank() + 1) * rows]
        return own

    def share_parameters(self):
        """Give every rank of a replica what the owners have computed."""
        with torch.no_grad():
            for index, parameter in enumerate(self.module.parameters()):
                if self.is_distributed_parameter(parameter):
                    parameter.copy_(self._own_rows(parameter))
                    dist.all_reduce(parameter, group=group("tp"))
                dist.broadcast(parameter, ranks_of("pp")[index % pp_size()], group("pp"))

    def local_named_parameters(self):
        for index, (name, parameter) in enumerate(self.module.named_parameters()):
            if self._owns(index):
                yield name, parameter

    def local_parameters(self):
        return (parameter for _, parameter in self.local_named_parameters())

    # --- state

    def local_state_dict(self):
        own = {name: value.detach().clone() for name, value in self.local_named_parameters()}
        return {**own, **dict(self.module.named_buffers()), "_smp_is_partial": True}

    def state_dict(self, *args, **kwargs):
        """Collective: a rank of the replica that does not call it lets the others wait."""
        if not self.partitioned:
            raise SMPError("SMP stand-in: the model has no partition yet")
        dist.barrier(group("mp"))
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def load_local(self, local):
        own = {name: value for name, value in local.items() if name != "_smp_is_partial"}
        self.module.load_state_dict(own, strict=False)
        self.share_parameters()
