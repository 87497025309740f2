"""``PowerSGD``: torch's hook, with its collectives in one order on all processes and a state that can be saved."""

from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import torch

from lightning_sm._distributed.communication import Communication
from lightning_sm._logging import log
from lightning_sm.errors import HyperparameterError

__all__ = ["PowerSGD"]

# Of PowerSGDState: a matrix is approximated if that sends less than half of it.
_MIN_COMPRESSION_RATE = 2


# What PowerSGD keeps of a parameter between steps: "error" is what has not been sent of this process's gradients, "q"
# the flat matrix Q, and None for a parameter that is sent whole. P is computed anew in each step.
_Kept = Dict[str, Any]


class PowerSGD(Communication):
    """PowerSGD (Vogels et al. 2019) by torch's ``powerSGD_hook``.

    On gloo that hook starts the second and third collective of a bucket from a thread when the one before has ended,
    in another order on each process as soon as there are two buckets. There one bucket is finished before the next.

    torch keeps errors and matrices by the index of a bucket. DDP arranges its buckets anew in the second step of each
    process, and so in the second step after a restart, too. So they are saved by parameter, and put together again for
    the buckets that there are.

    Args:
        model: The ``DistributedDataParallel`` of the fit.
        rank: The rank of the matrices.
        warmup_steps: Steps before it begins, at least 2.

    Raises:
        HyperparameterError: The model has a parameter that is a single number.
    """

    def __init__(self, model: Any, rank: int, warmup_steps: int) -> None:
        super().__init__(model)
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        for parameter, name in self._names.items():
            if parameter.requires_grad and parameter.dim() == 0:
                raise HyperparameterError(
                    f"gradient_compression=powersgd cannot send {name}, a parameter without dimensions.",
                    hint="Give it the shape (1,), or set gradient_compression to bf16.",
                )
        self._hook = powersgd.powerSGD_hook
        self._new_state = partial(
            powersgd.PowerSGDState,
            None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=warmup_steps,
            min_compression_rate=_MIN_COMPRESSION_RATE,
        )
        self._state: Any = self._new_state()
        self._in_order = torch.distributed.get_backend() != "nccl"
        # The parameters of each bucket, and what belongs to parameters of buckets that there are no more or not yet.
        self._buckets: Dict[int, Tuple[Any, ...]] = {}
        self._kept: Dict[str, _Kept] = {}
        self.register(self._compress)

    def _compress(self, bucket: Any) -> Any:
        if self._state.iter < self._state.start_powerSGD_iter:
            return self._hook(self._state, bucket)
        self._arrange(bucket.index(), tuple(bucket.parameters()))
        future = self._hook(self._state, bucket)
        if self._in_order:
            future.wait()
        return future

    def _arrange(self, index: int, parameters: Tuple[Any, ...]) -> None:
        """Give torch's state what belongs to the parameters of a bucket. Buckets come in the order of their indexes."""
        known = self._buckets.get(index)
        if known is not None and [*map(id, known)] == [*map(id, parameters)]:
            return
        for later in [each for each in self._buckets if each >= index]:
            self._kept.update(self._split(later))
            for by_index in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
                by_index.pop(later)
            del self._buckets[later]
        self._buckets[index] = parameters
        names = [self._names[parameter] for parameter in parameters]
        if not all(name in self._kept for name in names):
            return
        kept = [self._kept.pop(name) for name in names]
        device, dtype = parameters[0].device, parameters[0].dtype
        matrices = _matrices(parameters, self._state.matrix_approximation_rank)
        nothing = torch.empty(0, device=device, dtype=dtype)
        q = torch.cat([nothing, *(kept[each.position]["q"].to(device) for each in matrices)])
        self._state.error_dict[index] = torch.cat([each["error"].to(device) for each in kept])
        self._state.p_memory_dict[index] = nothing.new_empty(sum(each.p_size for each in matrices))
        self._state.q_memory_dict[index] = q

    def _split(self, index: int) -> Dict[str, _Kept]:
        """Copies of what torch's state holds for a bucket, by the names of its parameters."""
        parameters = self._buckets[index]
        matrices = _matrices(parameters, self._state.matrix_approximation_rank)
        # Copies, as a pickle of a view would hold all of the bucket.
        qs = [each.clone() for each in self._state.q_memory_dict[index].split([each.q_size for each in matrices])]
        q_at = dict(zip((each.position for each in matrices), qs))
        errors = self._state.error_dict[index].split([parameter.numel() for parameter in parameters])
        return {
            self._names[parameter]: {"error": error.clone(), "q": q_at.get(position)}
            for position, (parameter, error) in enumerate(zip(parameters, errors))
        }

    def state(self) -> Dict[str, Any]:
        """The number of steps, and error and matrix of each parameter: as much as all gradients, and a little."""
        kept = dict(self._kept)
        for index in self._buckets:
            kept.update(self._split(index))
        return {"steps": self._state.iter, "rank": self._state.matrix_approximation_rank, "parameters": kept}

    def load(self, state: Mapping[str, Any], is_same_world: bool) -> None:
        """Continue; with another rank or number of processes without errors and matrices."""
        self._state, self._buckets, self._kept = self._new_state(), {}, {}
        self._state.iter = state.get("steps", 0)
        if is_same_world and state.get("rank") == self._state.matrix_approximation_rank:
            self._kept = dict(state["parameters"])
        elif state.get("parameters"):
            log.warning("PowerSGD continues without what earlier steps have not sent: its rank or world has changed.")


class _Matrix(NamedTuple):
    """A parameter that is approximated: its position in the bucket and the sizes of its matrices."""

    position: int
    p_size: int
    q_size: int


def _matrices(parameters: Sequence[Any], rank: int) -> List[_Matrix]:
    """The parameters of a bucket that torch's hook approximates, in the order in which it keeps their matrices."""
    by_shape: Dict[Tuple[int, int], List[_Matrix]] = {}
    for position, parameter in enumerate(parameters):
        rows = parameter.shape[0]
        columns = parameter.numel() // rows
        own = min(rows, columns, rank)
        if (rows + columns) * own * _MIN_COMPRESSION_RATE < rows * columns:
            by_shape.setdefault((rows, columns), []).append(_Matrix(position, rows * own, columns * own))
    return [matrix for same in by_shape.values() for matrix in same]
