"""Where the Lightnings that are loaded keep the rank by which they decide who may log."""

import sys

from lightning_sm._lightning.namespaces import RANK_ZERO_MODULES

__all__ = ["rank_zero_onlys"]


def rank_zero_onlys():
    """Every ``rank_zero_only`` that is loaded."""
    modules = (sys.modules.get(name) for name in RANK_ZERO_MODULES)
    return [module.rank_zero_only for module in modules if hasattr(module, "rank_zero_only")]
