"""The package's logger."""

import logging

__all__ = ["log"]


class _Logger(logging.Logger):
    """Cannot be disabled: ``dictConfig`` and ``fileConfig`` disable all loggers that they do not name, by default.

    A job without metric lines has no metrics, and a tuning job no objective. Levels and handlers work as usual.
    """

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass


log = logging.getLogger("lightning_sm")
log.__class__ = _Logger
# It writes to stderr if logging is not configured, as Lightning's does.
if not logging.getLogger().hasHandlers() and not log.handlers:
    log.addHandler(logging.StreamHandler())
    log.propagate = False
if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
