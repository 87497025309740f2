"""A rehearsal of a SageMaker training job on one machine, with SageMaker's real container software.

The command is ``lightning-sm rehearse`` (``--help`` lists its options). In Python, create a request, which is a frozen
value, and rehearse it::

    from lightning_sm.rehearse import RehearsalOptions, create_request, rehearse

    options = RehearsalOptions(source_dir=".", processes=2, channels={"training": "./data"}, timeout=600)
    request = create_request("train.py", options, hosts=2, distribution="torch_distributed",
                             hyperparameters={"trainer.max_epochs": 2})
    outcome = rehearse(request)
    assert outcome.exit_code == 0, outcome.failure_reason
"""

from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._command import main
from lightning_sm.rehearse._log import TOPOLOGY_MARKER
from lightning_sm.rehearse._outcome import EndedBy, HostOutcome, Outcome, Status, Upload
from lightning_sm.rehearse._request import (
    Distribution,
    HostGroup,
    InputChannel,
    Isolation,
    RehearsalOptions,
    RehearsalRequest,
    create_request,
    request_from_body,
)
from lightning_sm.rehearse._runner import rehearse

__all__ = [
    "TOPOLOGY_MARKER",
    "Distribution",
    "EndedBy",
    "HostGroup",
    "HostOutcome",
    "InputChannel",
    "Isolation",
    "Outcome",
    "RehearsalError",
    "RehearsalOptions",
    "RehearsalRequest",
    "Status",
    "Upload",
    "create_request",
    "main",
    "rehearse",
    "request_from_body",
]
