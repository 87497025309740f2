"""The package's logger."""

import logging

__all__ = ["log"]


def _make_logger() -> logging.Logger:
    """Return the logger ``lightning_sm``, which writes to stderr if logging is not configured, as Lightning's does."""
    logger = logging.getLogger("lightning_sm")
    if not logging.getLogger().hasHandlers() and not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    return logger


log = _make_logger()
