"""Real processes: the toolkits and torchrun on hosts that this machine makes. With mpirun: ``tests/toolkits``."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from lightning_sm.rehearse import EndedBy, Isolation, Limits, Status, create_request
from lightning_sm.rehearse import rehearse as run_request
from tests.helpers.rehearsal import needs

pytestmark = [pytest.mark.rehearsal, pytest.mark.processes]


def told(summary: Dict[str, Any]) -> List[Tuple[str, int, int, float]]:
    """Host, rank, world size and sum over the ranks, as each rank told."""
    return sorted(
        (host["host"], each["topology"]["global_rank"], each["topology"]["world_size"], each["topology"]["sum"])
        for host in summary["attempts"][-1]["hosts"]
        for each in host["topologies"]
    )


@needs("loopback")
def test_loopback_runs_the_program_once_on_each_host(rehearse, source: Path, tmp_path: Path) -> None:
    (source / ".gitignore").write_text("*.log\n")
    (source / "old.log").write_text("")
    done = rehearse(
        "--isolation", "loopback", "--hosts", 2, "--env", "GREETING=hello", "--output-dir", tmp_path / "out",
        "plain.py", "fit", "--trainer.max_epochs", "2", "--config", "c.yaml", "--+x", "null",
    )  # fmt: skip
    assert done.exit_code == 0
    assert done.summary["status"] == "Completed"
    assert done.log.startswith("isolation: loopback")
    assert done.log.count("'--+x', '', '--config', 'c.yaml', '--trainer.max_epochs', '2'") == 2
    # What `launch` packs: nothing that git ignores, and a wheel of this package.
    assert "old.log" not in done.log
    assert "'plain.py'" in done.log
    assert "-py3-none-any.whl'" in done.log
    assert [each["name"] for each in done.summary["uploads"]] == ["by-127.0.0.1", "by-127.0.0.2"]
    with tarfile.open(tmp_path / "out" / "model.tar.gz") as archive:
        member = archive.extractfile("by-127.0.0.2")
        assert member is not None
        assert member.read() == b"hello"
    assert any("share this machine" in warning for warning in done.summary["warnings"])


@needs("loopback", torch=True)
def test_loopback_torchrun(rehearse) -> None:
    done = rehearse("--isolation", "loopback", "--hosts", 2, "--distribution", "torch_distributed", "ranks.py")
    assert done.exit_code == 0, done.log
    assert told(done.summary) == [("127.0.0.1", 0, 2, 3.0), ("127.0.0.2", 1, 2, 3.0)]


@needs("userns", torch=True)
@pytest.mark.extended
def test_userns_torchrun_two_processes_on_each_host(rehearse) -> None:
    done = rehearse(
        "--isolation", "userns", "--hosts", 2, "--processes", 2, "--distribution", "torch_distributed", "ranks.py"
    )
    assert done.exit_code == 0, done.log
    assert told(done.summary) == [
        ("algo-1", 0, 4, 10.0), ("algo-1", 1, 4, 10.0), ("algo-2", 2, 4, 10.0), ("algo-2", 3, 4, 10.0)
    ]  # fmt: skip


@needs("netns", torch=True)
def test_groups_make_a_torchrun_world_each(rehearse) -> None:
    done = rehearse(
        "--instance-groups", "head=1,workers=algo-3+algo-2", "--distribution", "torch_distributed", "ranks.py"
    )
    assert done.exit_code == 0, done.log
    # The first of the group's own list is its master, sorted or not.
    assert told(done.summary) == [("algo-1", 0, 1, 1.0), ("algo-2", 1, 2, 3.0), ("algo-3", 0, 2, 3.0)]


@needs("netns", torch=True, v3=True)
def test_v3_torchrun(rehearse) -> None:
    done = rehearse(
        "--sdk", "v3", "--hosts", 2, "--processes", 1, "--distribution", "torch_distributed",
        "ranks.py", "--flag", "null", "--map", '{"a": true}',
    )  # fmt: skip
    assert done.exit_code == 0, done.log
    assert told(done.summary) == [("algo-1", 0, 2, 3.0), ("algo-2", 1, 2, 3.0)]
    first = done.summary["attempts"][0]["hosts"][0]["topologies"][0]["topology"]
    assert first["argv"] == ["--flag", "null", "--map", '{"a": true}']


@needs("netns", v3=True)
def test_v3_ends_at_a_hyperparameter_with_a_dot(rehearse) -> None:
    done = rehearse("--sdk", "v3", "plain.py", "--trainer.max_epochs", "2")
    assert done.exit_code == 1
    assert "not a valid identifier" in done.log
    assert any("'trainer.max_epochs'" in warning for warning in done.summary["warnings"])


@needs("loopback")
def test_a_body_with_local_folders(rehearse, source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "words").write_text("hello")
    source.joinpath("reads.py").write_text(
        "import os, sys\n"
        "print(open(os.environ['SM_CHANNEL_TRAINING'] + '/words').read(), sys.argv[1:], os.environ['A'], flush=True)\n"
    )
    body = {
        "TrainingJobName": "job-1",
        "HyperParameters": {"sagemaker_program": "reads.py", "lr": "0.1"},
        "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.m5.xlarge"},
        "Environment": {"A": "b"},
        "InputDataConfig": [
            {"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": f"file://{data}"}}},
        ],
    }
    (tmp_path / "body.json").write_text(json.dumps(body))
    done = rehearse("--isolation", "loopback", "--request", tmp_path / "body.json")
    assert done.exit_code == 0, done.log
    assert done.summary["job_name"] == "job-1"
    assert len(done.summary["attempts"][0]["hosts"]) == 2
    words = " ".join(done.log.split())
    for piece in ("hello", "['--lr', '0.1']"):
        assert piece in words


@needs("netns")
def test_hosts_share_nothing(rehearse, source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source.joinpath("writes.py").write_text(
        "import glob, os, time\n"
        "host = os.environ['SM_CURRENT_HOST']\n"
        "folders = ('/tmp', '/root', '/etc', '/dev/shm', '/opt/ml', os.environ['SM_CHANNEL_TRAINING'])\n"
        "for folder in folders:\n"
        "    open(f'{folder}/seen-{host}', 'w').close()\n"
        "    time.sleep(0.2)\n"
        "time.sleep(2)\n"
        "seen = [path for folder in folders for path in glob.glob(f'{folder}/seen-*') if not path.endswith(host)]\n"
        "assert not seen, seen\n"
        "assert len([name for name in os.listdir('/proc') if name.isdigit()]) < 10\n"
    )
    done = rehearse("--hosts", 2, "--channel", f"training={data}", "writes.py")
    assert done.exit_code == 0, done.log
    assert list(data.iterdir()) == []
    assert not list(Path("/tmp").glob("seen-*"))


@needs("netns")
def test_local_mode_files_have_no_groups(rehearse) -> None:
    done = rehearse("--local-mode-files", "plain.py")
    assert done.exit_code == 0
    assert '"current_instance_type": "local"' in done.log
    assert '"current_group_name"' not in done.log


@needs("loopback")
def test_from_python(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    outcome = run_request(
        create_request(
            "plain.py",
            source_dir=source,
            hosts=2,
            hyperparameters={"flag": None},
            environment={"GREETING": "hello"},
            output_dir=tmp_path / "out",
            isolation="loopback",
        )
    )
    assert (outcome.exit_code, outcome.status, outcome.failure_reason) == (0, Status.COMPLETED, None)
    assert (outcome.isolation, outcome.collected, outcome.kept) == (Isolation.LOOPBACK, str(tmp_path / "out"), None)
    assert [(host.host, host.exit_code) for host in outcome.hosts] == [("127.0.0.1", 0), ("127.0.0.2", 0)]
    assert [each.name for each in outcome.uploads] == ["by-127.0.0.1", "by-127.0.0.2"]
    assert (tmp_path / "out" / "model.tar.gz").exists()
    log = capfd.readouterr().out
    assert log.startswith("isolation: loopback")
    assert log.count("'--flag', ''") == 2


@needs("netns")
def test_a_failure_from_python(source: Path, capfd: pytest.CaptureFixture) -> None:
    request = create_request("fail.py", source_dir=source, hosts=2, limits=Limits(abort_after=1), isolation="netns")
    outcome = run_request(request, log_to_stderr=True)
    assert (outcome.exit_code, outcome.status) == (1, Status.FAILED)
    assert outcome.failure_reason is not None
    assert "no such column" in outcome.failure_reason
    (attempt,) = outcome.attempts
    assert (attempt.ended_by, attempt.failed_host) == (EndedBy.EXIT, outcome.hosts[1])
    assert outcome.hosts[0].ended_because == "another host failed"
    assert capfd.readouterr().out == ""


@needs("netns")
def test_what_was_kept_from_python(source: Path) -> None:
    outcome = run_request(create_request("plain.py", source_dir=source, isolation="netns", keep=True))
    assert outcome.kept is not None
    try:
        assert (Path(outcome.kept) / "hosts" / "algo-1" / "ml" / "model" / "by-algo-1").exists()
    finally:
        shutil.rmtree(outcome.kept)


# Knows nothing of this package. With num_nodes its processes join, without they train alone.
SCRIPT = """
import os
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
together = {"num_nodes": 2, "devices": 1, "strategy": "ddp"}
alone = {"devices": 1}
pl.Trainer(
    max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    **(together if "TOGETHER" in os.environ else alone),
).fit(BoringModel())
"""


@needs("loopback", torch=True)
@pytest.mark.parametrize("together", [False, True])
def test_processes_that_trained_alone_are_told(rehearse, source: Path, together: bool) -> None:
    pytest.importorskip("lightning")
    source.joinpath("train.py").write_text(SCRIPT)
    variables = ("--env", "TOGETHER=1") if together else ()
    done = rehearse(
        "--isolation", "loopback", "--hosts", 2, "--distribution", "torch_distributed", *variables, "train.py"
    )
    assert done.exit_code == 0, done.log
    assert "WARNING: No file of the source imports lightning_sm: the 2 processes train together only if" in done.log
    told = [text for text in done.summary["problems"] if "2 processes were started as one job" in text]
    assert [len(told), [host["worlds"] for host in done.summary["attempts"][0]["hosts"]]] == (
        [0, [[2], [2]]] if together else [1, [[], []]]
    )
