"""Saves of a series as ``ckpt_path`` in Lightning alone, as a laptop or a project without this package has them."""

from unittest import mock

import pytest

from tests.helpers.series import saves_of
from tests.resume.job import Job, pl


class Plain(Job):
    def make_trainer(self, callbacks, **arguments):
        return pl.Trainer(default_root_dir=str(self.directory), enable_checkpointing=False, **arguments)


@pytest.mark.parametrize("validates", [True, False])
def test_the_steps_that_are_left_are_trained(tmp_path, validates):
    job, plain = Job(tmp_path / "job"), Plain(tmp_path / "plain")
    with mock.patch("lightning_sm._resume.series.Series.remove_replaced"):
        job.fit(val=validates)
    saves = {record["kind"]: record for record in saves_of(job.directory)}
    assert {"epoch", "end"} <= saves.keys()
    for kind, record in saves.items():
        plain.fit(val=validates, ckpt_path=str(job.path(record["name"])))
        assert (plain.trainer.global_step, plain.trainer.current_epoch) == (job.trainer.global_step, 3), kind
        # Within an epoch Lightning reads the epoch's data from its start.
        assert plain.weights == job.weights or kind in ("batch", "validation"), kind
