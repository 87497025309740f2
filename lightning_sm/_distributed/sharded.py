"""Strategies that shard a model in the launcher's world: FSDP, FSDP2 and DeepSpeed, over SMDDP where available."""

import importlib
import os
from pathlib import Path
from typing import Any, Dict, Optional

import torch

from lightning_sm._distributed.build_locks import remove_left_locks
from lightning_sm._distributed.mixin import StrategyMixin

__all__ = ["DeepSpeedMixin", "FSDPMixin", "ModelParallelMixin"]


class _FullyShardedMixin(StrategyMixin):
    """FSDP and FSDP2: Lightning initializes the group in ``setup_environment``."""

    _gathers = True

    def _get_process_group_backend(self) -> str:
        # Lightning asks for it right before it initializes the group.
        self._prepare_group()
        return super()._get_process_group_backend()


class FSDPMixin(_FullyShardedMixin):
    """Fully sharded data parallel training on SageMaker (FSDP), over AWS's SMDDP AllGather where it is available.

    It is Lightning's ``FSDPStrategy`` with what
    :class:`~lightning_sm.SMDDPStrategy` adds: the job's environment, ``devices`` and ``num_nodes`` of the launcher, the
    choice of the backend with one log line that tells why, and means that are computed as a sum and a division under
    ``smddp``. SMDDP's AllGather is for ``ml.p4d.24xlarge`` and ``ml.p4de.24xlarge``; on other instance types the
    backend is NCCL.

    Registered with Lightning as ``smddp_fsdp``. Needs Lightning 2.1. It reads the files and variables
    that :class:`~lightning_sm.SMDDPStrategy` lists, and:

    ``SMDATAPARALLEL_OPTIMIZE_SDP``
      Set to ``true``, if it is not set, before AWS's library is imported: under ``mpirun`` it chooses AllGather instead
      of AllReduce. Source: AWS, "Introduction to the SageMaker AI distributed data parallelism library".

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described above.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Lightning's ``FSDPStrategy``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` requests another world.
        SMDDPUnavailableError: ``smddp`` was requested by name and cannot be used (raised in ``fit``).
        StrategyUnavailableError: This Lightning is older than 2.1.

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="gpu", strategy="smddp_fsdp")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMDDPFSDPStrategy(state_dict_type="sharded"))  # doctest: +SKIP
    """

    strategy_name = "smddp_fsdp"


class ModelParallelMixin(_FullyShardedMixin):
    """FSDP2 and tensor parallelism on SageMaker, over AWS's SMDDP AllGather where it is available.

    It is Lightning's ``ModelParallelStrategy`` with what :class:`~lightning_sm.SMDDPStrategy` adds; see
    :class:`~lightning_sm.SMDDPFSDPStrategy` for the instance types and variables of SMDDP. With a
    ``tensor_parallel_size``, ``data_parallel_size="auto"`` is the world size divided by it; otherwise ``"auto"`` means
    what it means in Lightning: data parallel over hosts, tensor parallel within a host.

    torch reduces FSDP2's gradients by a mean. Under ``smddp`` it is told to compute a sum and to divide, which needs
    ``FSDPModule.set_force_sum_reduction_for_comms`` (torch 2.8); with an older torch the backend is NCCL.

    Registered with Lightning as ``smddp_fsdp2``, which has ``tensor_parallel_size=1``: data parallel over all
    processes. Needs Lightning 2.3 and torch 2.4.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described above.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Lightning's ``ModelParallelStrategy``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` requests another world.
        SMDDPUnavailableError: ``smddp`` was requested by name and cannot be used (raised in ``fit``).
        StrategyUnavailableError: This Lightning is older than 2.3.

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="gpu", strategy="smddp_fsdp2")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMDDPModelParallelStrategy(tensor_parallel_size=2))  # doctest: +SKIP
    """

    strategy_name = "smddp_fsdp2"
    _data_parallel_size: Any
    _tensor_parallel_size: Any

    def setup_environment(self) -> None:
        """Divide the world by the tensor parallel groups, and initialize the process group."""
        if self._data_parallel_size == "auto" and self._tensor_parallel_size != "auto":
            self._data_parallel_size = self.world_size // self._tensor_parallel_size
        super().setup_environment()

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        """Replicas are the processes of the data-parallel dimension: those of a tensor-parallel group read the same."""
        return dict(super(StrategyMixin, self).distributed_sampler_kwargs)

    def _smddp_problem(self) -> Optional[str]:
        if not hasattr(_fsdp_module(), "set_force_sum_reduction_for_comms"):
            return (
                f"FSDP2 reduces gradients by ReduceOp.AVG, which SMDDP lacks, and torch {torch.__version__} has no "
                "FSDPModule.set_force_sum_reduction_for_comms"
            )
        return super()._smddp_problem()

    def setup(self, trainer: Any) -> None:
        """Set the model up; under ``smddp`` its gradients are reduced by a sum and a division."""
        if self._choice.is_smddp and self.model is not None:
            kind: Any = _fsdp_module()
            for module in self.model.modules():
                if isinstance(module, kind):
                    module.set_force_sum_reduction_for_comms(True)
        super().setup(trainer)


class DeepSpeedMixin(StrategyMixin):
    """DeepSpeed (ZeRO) on SageMaker, over AWS's SMDDP AllGather where it is available.

    It is Lightning's ``DeepSpeedStrategy`` with what :class:`~lightning_sm.SMDDPStrategy` adds; see
    :class:`~lightning_sm.SMDDPFSDPStrategy` for the instance types and variables of SMDDP. Before training, locks
    that a killed build of an extension left on this host are removed, because DeepSpeed would wait for them forever; in
    a folder that you have set, which hosts may share, they are named only.

    Registered with Lightning as ``smddp_deepspeed`` and ``smddp_deepspeed_stage_3``. Needs Lightning 2.1 and the
    package ``deepspeed``. It reads the files and variables that :class:`~lightning_sm.SMDDPStrategy` lists, and:

    ``TORCH_EXTENSIONS_DIR``
      Where torch builds extensions; by default ``~/.cache/torch_extensions``. Set by the user.

    ``MASTER_ADDR``, ``MASTER_PORT``, ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``
      Written by Lightning for DeepSpeed, with this job's values.

    Args:
        process_group_backend: ``smddp``, ``nccl`` or ``gloo``; ``None`` chooses as described above.
        cluster_environment: An environment to use instead, which then determines ranks and sizes.
        **kwargs: The arguments of Lightning's ``DeepSpeedStrategy``.

    Raises:
        JobConfigError: A file or variable of the job is malformed.
        TopologyError: The launcher's variables are inconsistent, or the ``Trainer`` requests another world.
        SMDDPUnavailableError: ``smddp`` was requested by name and cannot be used (raised in ``fit``).
        StrategyUnavailableError: This Lightning is older than 2.1.

    Example::

        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(accelerator="gpu", strategy="smddp_deepspeed_stage_3")  # doctest: +SKIP
        >>> trainer = Trainer(strategy=SMDDPDeepSpeedStrategy(stage=2))  # doctest: +SKIP
    """

    strategy_name = "smddp_deepspeed"
    _gathers = True

    def setup_distributed(self) -> None:
        """Remove locks of killed builds, choose the backend, log why, and initialize the process group."""
        if self.local_rank == 0:
            given = os.environ.get("TORCH_EXTENSIONS_DIR")
            # DeepSpeed imports it, too.
            torchs: Any = importlib.import_module("torch.utils.cpp_extension")
            remove_left_locks(Path(given or torchs.get_default_build_root()), shared=given is not None)
        self._prepare_group()
        super().setup_distributed()


def _fsdp_module() -> Any:
    """The class of modules that FSDP2 shards; ``None`` where torch has no FSDP2, or keeps it private (before 2.6)."""
    return getattr(importlib.import_module("torch.distributed.fsdp"), "FSDPModule", None)
