"""Which checkpoint a restarted job goes on from, and whether it has anything left to do."""

from lightning_sm._resume._candidate import FINAL_WEIGHTS, REPLACED_WEIGHTS, STAMP, Candidate, list_candidates
from lightning_sm._resume._choice import Choice, choose
from lightning_sm._resume._every_host import on_every_host
from lightning_sm._resume._finished import (
    Finished,
    plain,
    read_finished,
    remove_finished,
    tensor_sums,
    training_limits,
    weight_sums,
    write_finished,
)
from lightning_sm._resume._identity import JobIdentity
from lightning_sm._resume._search import will_be_found

__all__ = [
    "Candidate",
    "Choice",
    "FINAL_WEIGHTS",
    "Finished",
    "JobIdentity",
    "REPLACED_WEIGHTS",
    "STAMP",
    "choose",
    "list_candidates",
    "plain",
    "on_every_host",
    "read_finished",
    "remove_finished",
    "tensor_sums",
    "training_limits",
    "weight_sums",
    "will_be_found",
    "write_finished",
]
