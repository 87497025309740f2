"""What each program imports first and calls last: the job's line, a kill after an optimizer step, and its weights."""

import os
import random
import signal
from itertools import count

import numpy
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["end"]

_steps = count(1)


def _kill(*_):
    if str(next(_steps)) == os.environ.get("KILL_AFTER"):
        os.kill(os.getpid(), signal.Signals[os.environ["KILL_BY"]])


def end(*states):
    torch.save((states, next(_steps) - 1), "weights.pt")


register_optimizer_step_post_hook(_kill)
for seed in (torch.manual_seed, numpy.random.seed, random.seed):
    seed(1)
if "TRAINING_JOB_NAME" in os.environ:
    import lightning_sm

    lightning_sm.auto(save_every=3)
