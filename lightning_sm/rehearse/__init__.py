"""A rehearsal of a SageMaker training job on one machine, with SageMaker's real container software.

The command is ``lightning-sm rehearse`` (``--help`` lists its options). In Python, create a request, which is a frozen
value, and rehearse it::

    from lightning_sm.rehearse import create_request, rehearse

    request = create_request("train.py", hosts=2, processes=2, distribution="torch_distributed",
                             channels={"training": "./data"}, hyperparameters={"trainer.max_epochs": 2})
    outcome = rehearse(request)
    assert outcome.exit_code == 0, outcome.failure_reason
"""

import importlib
from typing import TYPE_CHECKING, Any, List

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._request import (
    Distribution,
    HostGroup,
    InputChannel,
    Isolation,
    Limits,
    NetworkLink,
    RehearsalRequest,
    Sdk,
)

if TYPE_CHECKING:
    from lightning_sm.rehearse._body import request_from_body
    from lightning_sm.rehearse._command import main
    from lightning_sm.rehearse._create_request import create_request
    from lightning_sm.rehearse._host_process import TOPOLOGY_MARKER
    from lightning_sm.rehearse._outcome import Attempt, EndedBy, HostOutcome, Outcome, Status, Upload
    from lightning_sm.rehearse._runner import rehearse

__all__ = [
    "TOPOLOGY_MARKER",
    "Attempt",
    "Distribution",
    "EndedBy",
    "HostGroup",
    "HostOutcome",
    "InputChannel",
    "Isolation",
    "Limits",
    "NetworkLink",
    "Outcome",
    "RehearsalError",
    "RehearsalRequest",
    "Sdk",
    "Status",
    "Upload",
    "create_request",
    "main",
    "rehearse",
    "request_from_body",
]

# Loaded on first use: the processes of a host are started by this package's name, and need the values above only.
_MODULES = {
    "TOPOLOGY_MARKER": "_host_process",
    "Attempt": "_outcome",
    "EndedBy": "_outcome",
    "HostOutcome": "_outcome",
    "Outcome": "_outcome",
    "Status": "_outcome",
    "Upload": "_outcome",
    "create_request": "_create_request",
    "main": "_command",
    "rehearse": "_runner",
    "request_from_body": "_body",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
