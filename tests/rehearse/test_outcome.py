"""A rehearsal's log lines, its summary, and the differences from SageMaker."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_sm.rehearse import TOPOLOGY_MARKER, Attempt, EndedBy, HostOutcome, Isolation, Outcome, Upload
from lightning_sm.rehearse._checks import differences
from lightning_sm.rehearse._host_process import LogLine, find_topologies, parse_lines
from tests.helpers.rehearsal import cli_request as request


class TestLogs:
    @pytest.mark.parametrize(
        ("raw", "line"),
        [
            ("plain\n", LogLine("algo-1", None, "plain")),
            ("[1,mpirank:3,algo-2]<stdout>:loss 1\n", LogLine("algo-2", 3, "loss 1")),
            ("[1,2]<stderr>: warning\n", LogLine("algo-1", 2, "warning")),
            ("[rank1]: Traceback\r\n", LogLine("algo-1", 1, " Traceback")),
        ],
    )
    def test_where_a_line_comes_from(self, raw: str, line: LogLine) -> None:
        assert list(parse_lines("algo-1", raw, ("algo-1", "algo-2"))) == [line]

    def test_hosts_of_ranks_are_counted_by_the_toolkit(self) -> None:
        (line,) = parse_lines("algo-3", "[1,mpirank:1,algo-2]<stdout>:x", ("algo-3", "algo-1"))
        assert line.host == "algo-1"

    def test_lines_that_mpirun_glued(self) -> None:
        raw = "[1,mpirank:0,algo-1]<stdout>:a[1,mpirank:1,algo-2]<stdout>:b\n"
        assert [str(line) for line in parse_lines("algo-1", raw, ("algo-1", "algo-2"))] == [
            "[algo-1 rank 0] a",
            "[algo-2 rank 1] b",
        ]

    def test_an_empty_line_stays_a_line(self) -> None:
        assert list(parse_lines("algo-1", "\n")) == [LogLine("algo-1", None, "")]

    def test_prefix(self) -> None:
        assert str(LogLine("algo-2", 3, "x")) == "[algo-2 rank 3] x"
        assert str(LogLine("algo-2", None, "x")) == "[algo-2] x"

    def test_topologies_of_glued_lines(self) -> None:
        text = f'a {TOPOLOGY_MARKER} {{"global_rank": 0}}{TOPOLOGY_MARKER} {{"global_rank": 1}} b {TOPOLOGY_MARKER} no'
        assert list(find_topologies(text)) == [{"global_rank": 0}, {"global_rank": 1}]


class TestOutcome:
    def host(self, name: str, code: Any, seconds: float = 1.0, **more: Any) -> HostOutcome:
        return HostOutcome(name, "homogeneousCluster", code, seconds, **more)

    def test_the_first_to_fail_gives_the_reason(self) -> None:
        late = self.host("algo-1", 1, 9.0, failure="because of the other")
        early = self.host("algo-2", 1, 2.0, failure="x" * 2000)
        outcome = Outcome((Attempt((late, early), EndedBy.EXIT, 9.0),))
        assert (outcome.status, outcome.exit_code, outcome.failure_reason) == ("Failed", 1, "x" * 1024)

    def test_no_failure_file(self) -> None:
        assert Outcome((Attempt((self.host("algo-1", 2),), EndedBy.EXIT, 1.0),)).failure_reason == ""

    def test_timeout_names_who_runs_and_who_does_not(self) -> None:
        hosts = (self.host("algo-1", None, 60.0), self.host("algo-2", 0, 3.0))
        outcome = Outcome((Attempt(hosts, EndedBy.TIMEOUT, 60.0),))
        assert outcome.exit_code == 124
        assert outcome.failure_reason == (
            "Still running after 60 s (--timeout): algo-1. Ended with exit code 0: algo-2 after 3 s; the others may be "
            "waiting for it."
        )

    def test_summary(self) -> None:
        told = ((0, {"global_rank": 0, "world_size": 1}),)
        attempt = Attempt((self.host("algo-1", 0, topologies=told),), EndedBy.EXIT, 1.0)
        uploads = (Upload("model.tar.gz", "model.ckpt", 12, "algo-1"),)
        outcome = Outcome((attempt,), uploads, ("something",), "job", Isolation.NETNS, kept="/kept")
        assert outcome.as_text().splitlines() == [
            "",
            "job: Completed",
            "  host    exit  seconds",
            "  algo-1     0      1.0",
            "Topology that each rank resolved:",
            "  rank 0 on algo-1: global_rank=0, world_size=1",
            "SageMaker would upload:",
            "  model.tar.gz: model.ckpt (12 bytes, algo-1)",
            "Differences from SageMaker:",
            "  - something",
            "Kept: /kept",
        ]
        read = json.loads(outcome.as_json())
        assert (read["status"], read["failure_reason"]) == ("Completed", None)
        assert read["attempts"][0]["hosts"][0]["topologies"] == [
            {"rank": 0, "topology": {"global_rank": 0, "world_size": 1}}
        ]


class TestDifferences:
    def test_torch_distributed_on_cpu(self, source: Path) -> None:
        cpu = request(source, "--distribution", "torch_distributed", "plain.py")
        gpu = request(source, "--distribution", "torch_distributed", "--instance-type", "ml.g5.xlarge", "plain.py")
        assert any(
            "SDK v2 refuses torch_distributed on ml.m5.xlarge" in text for text in differences(cpu, Isolation.NETNS)
        )
        assert not any("refuses" in text for text in differences(gpu, Isolation.NETNS))

    def test_v3(self, source: Path) -> None:
        made = request(source, "--sdk", "v3", "--channel", f"my-data={source}", "plain.py", "--a.b", "it's")
        assert len([text for text in differences(made, Isolation.NETNS) if "ends the job" in text]) == 3
