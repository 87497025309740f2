"""Imports what sharded strategies import late, before the server of processes forks."""

import contextlib
import importlib

from tests.helpers.sharded import prepare_deepspeed

with contextlib.suppress(ImportError):
    prepare_deepspeed()
    importlib.import_module("deepspeed.runtime.engine")
