"""Which checkpoint a restarted job goes on from, and whether it has anything left to do."""

from lightning_sm._resume._candidate import REPLACED_WEIGHTS, Candidate, list_candidates
from lightning_sm._resume._choice import Choice, choose
from lightning_sm._resume._finished import Finished, read_finished, remove_finished, training_limits, write_finished

__all__ = [
    "Candidate",
    "Choice",
    "Finished",
    "REPLACED_WEIGHTS",
    "choose",
    "list_candidates",
    "read_finished",
    "remove_finished",
    "training_limits",
    "write_finished",
]
