"""The options of resuming, and what the job's directory holds, where a program has several fits."""

import pytest

from tests.fits.jobs import TERMINATED, same


@pytest.mark.full
def test_require_resumes_a_second_fit(job, whole):
    stopped = job("two_stages one")
    stopped.run("finetune:13", "term").died(TERMINATED)
    stopped.options = {"resume": "require"}
    attempt = stopped.run()
    same(attempt, whole("two_stages one"))
    assert attempt.found["fit-1"] in (13, 14)
    assert attempt.steps("pretrain") == []
    assert attempt.steps("finetune") == list(range(attempt.found["fit-1"], 16))


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
