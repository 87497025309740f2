"""Two hosts save and resume with DDP and each strategy that shards, with damage, by other strategies, and alone."""

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

_SCRIPT = "tests.sharded.resume_folders"
_SHARDED = ("fsdp", "fsdp2", "deepspeed_2", "deepspeed_3")
_KINDS = ("ddp", *_SHARDED)
# One file, one with torch's format of shards, and one with DeepSpeed's.
_DAMAGED = ("ddp", "fsdp2", "deepspeed_3")
_STEPS = 16


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """Where the first job keeps the checkpoints of steps 3 and 6 of each kind, for the others."""
    return tmp_path_factory.mktemp("older")


@pytest.fixture(scope="module")
def job(tmp_path_factory, older):
    arguments = installed_namespaces()[0].name, ",".join(_KINDS), "two", older, ",".join(_DAMAGED)
    return Job(tmp_path_factory.mktemp("two"), _SCRIPT, *arguments, timeout=400).torchrun(2, 1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, older, ranks):
    """One process, with what two have saved, by the strategy that saved it and by others."""
    kinds = ",".join(kind for kind in _KINDS if kind != "fsdp")
    arguments = installed_namespaces()[0].name, kinds, "other", older
    return Job(tmp_path_factory.mktemp("one"), _SCRIPT, *arguments, timeout=200).torchrun(1, 1)


@pytest.mark.parametrize("kind", _KINDS)
def test_hosts_with_their_own_shards_continue_as_if_never_interrupted(ranks, kind):
    first, second = (seen[kind]["files"] for seen in ranks)
    both = {name.rpartition("fit-0/")[2] for name in set(first) & set(second)}
    of_each = {"step-3.json", "step-3.ckpt/manifest.json", "step-6.json", "step-6.ckpt/manifest.json"}
    assert both == (set() if kind == "ddp" else of_each)
    for seen in (each[kind] for each in ranks):
        weights, stopped = seen["whole"]["weights"], seen["terminated"]
        assert len(set(weights)) > 1
        # SIGTERM saves on all ranks.
        assert (stopped["code"], stopped["steps"], stopped["global_step"]) == (143, 5, 5)
        # After a crash, after the end, and after SIGTERM.
        for again, step in (("resumed", 6), ("again", _STEPS), ("after it", 5)):
            assert seen[again]["resumed_from"].endswith(f"/fit-0/step-{step}.ckpt")
            assert seen[again]["steps"] == _STEPS - step
            assert seen[again]["weights"] == weights


@pytest.mark.parametrize("kind", _KINDS)
def test_the_best_checkpoint_is_tested_and_validated_with_the_files_of_both_hosts(job, ranks, kind):
    first, second = (seen[kind]["best of six"]["files"] for seen in ranks)
    assert set(first) & set(second) == (set() if kind == "ddp" else {"manifest.json"})
    for seen in (each[kind] for each in ranks):
        found, expected = seen["best of six"], seen["ended at three"]
        test, validation, again = found["metrics"]
        assert found["metrics"] == expected["metrics"]
        assert (test, test["test_loss"]) == (again, validation["val_loss"])
        assert found["weights"] == expected["weights"]
    assert "Sending /proc/self/cwd/checkpoints/step=3.ckpt/" in job.output


def test_a_file_of_the_main_host_is_loaded_on_both_or_an_error_on_both(ranks):
    assert ranks[1]["ddp"]["best of six"]["files"] == []
    for seen in (each["ddp"] for each in ranks):
        for case in ("none", "another"):
            assert seen["file"][case] == {"weights": seen["ended at three"]["weights"]}
        error = seen["file"]["not writable"]["error"]
        assert "step=3.ckpt is not on every host, and could not be sent (global_rank 1: " in error


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("nothing", 6),
        ("missing", 3),
        ("flipped", 3),
        ("of another save", 3),
        ("flipped on one host", 6),
        ("not on one host", 6),
        ("not on the main host", 6),
        ("record on one host", 6),
        ("no record", 3),
        ("given, but not used", 6),
        ("given", 3),
    ],
)
@pytest.mark.parametrize("kind", _DAMAGED)
def test_the_newest_that_is_whole_is_taken(ranks, kind, case, step):
    assert [each[kind][case].get("started_at") for each in ranks] == [step, step], ranks[0][kind][case]
    own = [each[kind][case]["weights"] for each in ranks]
    undamaged = "nothing" if step == 6 else "missing"
    assert own == [each[kind][undamaged]["weights"] for each in ranks]


@pytest.mark.parametrize("kind", _DAMAGED)
def test_errors_before_anything_is_trained(ranks, kind):
    for seen in (each[kind] for each in ranks):
        assert "/fit-0/step-6.ckpt does not fit this model or trainer" in seen["changed model"]["error"]
        if kind == "ddp":  # nothing is known of a given file
            continue
        error = seen["given, damaged"]["error"]
        assert "The checkpoint /proc/self/cwd/given/step-3.ckpt cannot be loaded: 1 of its " in error
        assert "; no host has it whole" in error
        error = seen["weights only"]["error"]
        assert "sagemaker.resume_weights_only is set, and loading a sharded checkpoint runs code of its" in error
        assert "HINT: Set it to false" in error


def test_each_says_why(job, ranks):
    for reason in (
        "fit-0: 1 of its 4 files cannot be used: step-6.ckpt/__1_0.distcp is missing; no host has it whole",
        "/fit-0/step-6.ckpt/__1_0.distcp (",
        "The ckpt_path /proc/self/cwd/checkpoints/none.ckpt is not used: this fit of the job has its own step-6.ckpt",
    ):
        assert reason in job.output


def test_with_another_world_size(alone):
    (seen,) = alone.results(1)
    assert seen["fsdp2"]["fsdp2"]["started_at"] == 6
    assert "step-6.ckpt was saved by 2 processes, and this job has 1. Its shards are distributed anew" in alone.output
    for kind in ("deepspeed_2", "deepspeed_3"):
        error = seen[kind][kind]["error"]
        assert "it was saved by 2 processes, this job has 1, and DeepSpeed does not distribute" in error
        assert "HINT: Resume with 2 processes" in error


def test_with_another_strategy(alone):
    (seen,) = alone.results(1)
    cannot = {kind for kind, found in seen["ddp"].items() if "which DDPStrategy cannot load" in found.get("error", "")}
    assert cannot == {*_SHARDED}
    assert "FSDPStrategy, which DDPStrategy cannot load. HINT: Resume with the strategy" in seen["ddp"]["fsdp"]["error"]
    assert "which ModelParallelStrategy cannot load" in seen["fsdp2"]["fsdp"]["error"]
    assert "DeepSpeedStrategy, which ModelParallelStrategy cannot load" in seen["fsdp2"]["deepspeed_3"]["error"]
    for source in ("fsdp", "fsdp2"):
        assert "DeepSpeedStrategy cannot load" in seen["deepspeed_2"][source]["error"]
    assert "it was saved with ZeRO stage 3, and this job has stage 2" in seen["deepspeed_2"]["deepspeed_3"]["error"]
