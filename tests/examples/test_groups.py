"""The example of instance groups: its request, and its job on three hosts of this machine."""

import json
from pathlib import Path

import pytest

from lightning_sm.launch import create_job_request
from lightning_sm.launch._arguments import command_parser
from lightning_sm.launch._command import _read
from tests.docs.pages import blocks
from tests.helpers.processes import ROOT
from tests.helpers.rehearsal import command_line, needs, run_rehearsal
from tests.launch.conftest import ROLE
from tests.launch.test_request import ACCOUNT

EXAMPLE = ROOT / "examples" / "groups"


def test_the_page_shows_the_request_that_launch_would_send(monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    settings, _, _ = _read(command_parser("launch"), ["train.py"])
    settings.role = ROLE
    body = create_job_request(settings, ACCOUNT, name="job-1").as_body()
    (shown,) = blocks(ROOT / "docs" / "groups.md", "json")
    for field, expected in json.loads(shown).items():
        assert {name: body[field][name] for name in expected} == expected
    assert Path("train.py").is_file()


@pytest.mark.full
@needs("netns", torch=True)
def test_one_group_trains_and_the_other_serves_until_it_has_ended(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="the example uses lightning.pytorch")
    groups = ("--instance-groups", "train=2:ml.m5.xlarge,data=1:ml.m5.xlarge", "--distribution-groups", "train")
    options = ("--distribution", "torch_distributed", "--isolation", "netns", "--output-dir", tmp_path, "--json")
    done = run_rehearsal(command_line(EXAMPLE, *groups, *options, "train.py"), timeout=280)
    ranks = {host["host"]: [each["global_rank"] for each in host["topologies"]] for host in done.summary["hosts"]}
    assert ranks == {"algo-1": [0], "algo-2": [1], "algo-3": []}
    assert "topology: world: 2 processes, 1 on this host, 2 hosts" in done.log
    assert "topology: hosts: algo-1, algo-2" in done.log
    assert done.log.index("serving batches on algo-3") < done.log.index("the training has ended")
