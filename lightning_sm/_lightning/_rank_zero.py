"""Tells Lightning which process may log, before Lightning itself could know."""

import sys

__all__ = ["set_rank_zero_rank"]

# Every module in which some Lightning keeps a `rank_zero_only` of its own.
_MODULES = (
    "lightning_utilities.core.rank_zero",  # 1.8 and later
    "lightning.fabric.utilities.rank_zero",
    "lightning_fabric.utilities.rank_zero",  # 1.9 and later
    "lightning_lite.utilities.rank_zero",  # 1.8
    "lightning.pytorch.utilities.rank_zero",
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.utilities.distributed",  # 1.5
)


def set_rank_zero_rank(rank: int) -> None:
    """Set the rank that ``rank_zero_only`` goes by in every Lightning that is loaded.

    By itself Lightning looks at ``RANK``, ``LOCAL_RANK`` and schedulers' variables, none of which ``mpirun`` sets, so
    that every rank would log: ``lightning_utilities/core/rank_zero.py``, ``_get_rank``.
    """
    for name in _MODULES:
        rank_zero_only = getattr(sys.modules.get(name), "rank_zero_only", None)
        if rank_zero_only is not None:
            rank_zero_only.rank = rank
