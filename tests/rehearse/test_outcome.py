"""A rehearsal's log lines, and its summary."""

import json
from typing import Any, List, Optional

import pytest

from lightning_sm.launch._log_lines import parse_lines
from lightning_sm.rehearse import TOPOLOGY_MARKER, HostOutcome, Outcome, Upload
from lightning_sm.rehearse._log import find_error_line, find_topologies, find_worlds


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        ("plain\n", ["[algo-3] plain"]),
        ("\n", ["[algo-3] "]),
        # The toolkit counts hosts, whatever they are called.
        ("[1,mpirank:3,algo-2]<stdout>:loss 1\n", ["[algo-1 rank 3] loss 1"]),
        ("[1,2]<stderr>: warning\n", ["[algo-3 rank 2] warning"]),
        ("[rank1]: Traceback\r\n", ["[algo-3 rank 1]  Traceback"]),
        ("[1,mpirank:0,algo-1]<stdout>:a[1,mpirank:1,algo-2]<stdout>:b\n", ["[algo-3 rank 0] a", "[algo-1 rank 1] b"]),
    ],
)
def test_where_a_line_comes_from(raw: str, lines: List[str]) -> None:
    assert [str(line) for line in parse_lines("algo-3", raw, ("algo-3", "algo-1"))] == lines


def test_topologies_and_worlds_of_joined_lines() -> None:
    text = f'a {TOPOLOGY_MARKER} {{"world_size": 4}}{TOPOLOGY_MARKER} {{"global_rank": 1}} b {TOPOLOGY_MARKER} no'
    assert list(find_topologies(text)) == [{"world_size": 4}, {"global_rank": 1}]
    assert list(find_worlds(f"Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2 {text}")) == [2, 4]


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            ["usage: train.py [-h]", "train.py: error: no", "", "sagemaker-training-toolkit ERROR Reporting"],
            "train.py: error: no",
        ),
        (["ValueError: x", "bye", 'ErrorMessage ""', 'Command "python train.py"', "ExitCode 2"], "ValueError: x"),
        (["no data", "ExecuteUserScriptError:"], "no data"),
        (
            ["usage: main.py {fit}", 'error: Key "model": no.', "  Error in class Net", "ExitCode 2"],
            'error: Key "model": no.',
        ),
        ([" ", "sagemaker-training-toolkit INFO x"], None),
    ],
)
def test_the_line_that_tells_more(texts: List[str], line: Optional[str]) -> None:
    assert find_error_line(texts) == line


def host(name: str, code: Any, seconds: float = 1.0, **more: Any) -> HostOutcome:
    return HostOutcome(name, "homogeneousCluster", code, seconds, **more)


def test_the_first_to_fail_gives_the_reason() -> None:
    late = host("algo-1", 1, 9.0, failure="because of the other")
    early = host("algo-2", 1, 2.0, failure="x" * 2000)
    outcome = Outcome((late, early), "exit", 9.0)
    assert (outcome.status, outcome.exit_code, outcome.failure_reason) == ("Failed", 1, "x" * 1024)
    assert Outcome((host("algo-1", 2),), "exit", 1.0).failure_reason == ""


def test_timeout_names_who_runs_and_who_does_not() -> None:
    hosts = (host("algo-1", None, 60.0), host("algo-2", 0, 3.0))
    outcome = Outcome(hosts, "timeout", 60.0)
    assert outcome.exit_code == 124
    assert outcome.failure_reason == (
        "Still running after 60 s (--timeout): algo-1. Ended with exit code 0: algo-2 after 3 s; the others may be "
        "waiting for it."
    )


def test_summary() -> None:
    told = {"global_rank": 0, "world_size": 1}
    hosts = (host("algo-1", 0, topologies=(told,)),)
    uploads = (Upload("model.tar.gz", "model.ckpt", 12, "algo-1"),)
    found = {"uploads": uploads, "warnings": ("something",), "problems": ("bad",)}
    outcome = Outcome(hosts, "exit", 1.0, **found, job_name="job", isolation="netns")
    assert outcome.as_text().splitlines() == [
        "",
        "job: Completed",
        "  host    exit  seconds",
        "  algo-1     0      1.0",
        "WARNING: bad",
        "Topology that each rank resolved:",
        "  rank 0 on algo-1: global_rank=0, world_size=1",
        "SageMaker would upload:",
        "  model.tar.gz: model.ckpt (12 bytes, algo-1)",
        "Differences from SageMaker:",
        "  - something",
    ]
    read = json.loads(outcome.as_json())
    assert (read["status"], read["failure_reason"], read["isolation"]) == ("Completed", None, "netns")
    assert read["hosts"][0]["topologies"] == [told]
