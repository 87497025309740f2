"""The package's logger."""

import logging

__all__ = ["log"]


log = logging.getLogger("lightning_sm")
# It writes to stderr if logging is not configured, as Lightning's does.
if not logging.getLogger().hasHandlers() and not log.handlers:
    log.addHandler(logging.StreamHandler())
    log.propagate = False
if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
