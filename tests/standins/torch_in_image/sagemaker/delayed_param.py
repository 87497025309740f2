"""``DelayedParamIniter`` of the stand-in."""

from contextlib import contextmanager

import torch
from torch.sagemaker import calls  # type: ignore[import-not-found]


class DelayedParamIniter:
    """Initializes modules whose parameters are on the meta device."""

    def __init__(self, model):
        calls.append(("DelayedParamIniter",))
        self._model = model

    def get_param_init_fn(self):
        def initialize(module):
            module.to_empty(device=torch.device("cpu"), recurse=False)
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

        return initialize

    def get_post_param_init_fn(self):
        return lambda module: calls.append(("post_param_init",))

    @contextmanager
    def validate_params_and_buffers_inited(self):
        yield
        if any(value.is_meta for value in (*self._model.parameters(), *self._model.buffers())):
            raise RuntimeError("SMP v2 stand-in: parameters are left on the meta device")
        calls.append(("validated",))
