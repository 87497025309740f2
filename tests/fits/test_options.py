"""The time limit of a job whose program has several fits."""

import pytest

from tests.fits.jobs import same


@pytest.mark.full
def test_the_time_limit_in_the_first_of_two_fits(job, whole):
    limited = job("two_stages one", options={"max_runtime": "8s"}, PAUSE=0.8)
    attempt = limited.run().ended()
    assert 0 < len(attempt.steps("pretrain")) < 16
    assert attempt.steps("finetune") == []
    assert attempt.results == []
    reason, steps = "sagemaker.max_runtime 8s is nearly reached", len(attempt.steps("pretrain"))
    assert f"{reason}: stopping after step {steps}, before the program's end." in attempt.log
    # The exported model is there, and its description tells it from the one of a program that has ended.
    assert attempt.summary["global_step"] == steps
    assert (attempt.summary["ended"], attempt.summary["stopped_by"]) == (False, reason)
    assert whole("two_stages one").summary["ended"] is True
    limited.variables, limited.options = {}, {}
    same(limited.run(), whole("two_stages one"))
