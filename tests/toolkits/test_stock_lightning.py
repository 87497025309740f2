"""Failures of Lightning without this package, each with its reason, and the same with us.

Not shown: gloo jobs that abort at exit, which happens at random (about one finished job in ten without this package);
``tests/processes/test_exit.py`` runs ours again and again.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from lightning_sm.rehearse import rehearse as run_request
from tests.helpers.processes import Job
from tests.helpers.rehearsal import cli_request, needs

from .running import needs_launch, rehearse

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
]

_PROGRAM = Path(__file__).parent / "train_baseline.py"


def _torchrun(folder, way):
    return Job(folder, _PROGRAM, "--way", way).torchrun(1, 2)


@pytest.mark.full
def test_stock_lightning_trains_a_model_in_each_of_torchruns_processes(tmp_path):
    stock = _torchrun(tmp_path / "stock", "bare").results(2)
    # Twice the work, no word about it, and exit code 0.
    assert [each["ranks"][1] for each in stock] == [1, 1]
    assert [each["steps"] for each in stock] == [8, 8]
    ours = _torchrun(tmp_path / "ours", "ours").results(2)
    assert [each["ranks"] for each in ours] == [[0, 2, 0], [1, 2, 0]]
    assert [each["steps"] for each in ours] == [4, 4]


@needs_launch("mpi_one_of_two_groups")
def test_mpirun_gives_every_host_the_first_hosts_variables(rehearsed_launch):
    for seen in rehearsed_launch("mpi_one_of_two_groups").on("algo-2"):
        told = seen["variables"]
        # The first of the group, which a script that looks at these variables takes for its own host.
        assert told["SM_CURRENT_HOST"] == json.loads(told["SM_RESOURCE_CONFIG"])["current_host"] == "algo-3"
        # OMPI_COMM_WORLD_NODE_RANK is no node's rank either.
        assert told["OMPI_COMM_WORLD_NODE_RANK"] == told["OMPI_COMM_WORLD_LOCAL_RANK"]
        assert seen["current_host"] == "algo-2"
        assert seen["topology"]["node_rank"] == 1


@needs_launch("smddp_two_hosts")
def test_variables_end_at_a_hash_sign_on_other_hosts(rehearsed_launch):
    rehearsed = rehearsed_launch("smddp_two_hosts")
    (first,), (second,) = rehearsed.on("algo-1"), rehearsed.on("algo-2")
    assert json.loads(first["variables"]["SM_HPS"])["note"] == "before#after"
    for name in ("SM_HPS", "SM_TRAINING_ENV", "SM_USER_ARGS"):
        with pytest.raises(json.JSONDecodeError):
            json.loads(second["variables"][name])
    for seen in (first, second):
        assert seen["note"] == seen["hyperparameters"]["note"] == "before#after"


_PARSED = ("--model.label", "null", "--model.mapping", '{"a": {"b": true}}')


@needs("loopback", torch=True)
def test_none_and_dicts_on_their_way_through_the_toolkit(source, tmp_path):
    # The toolkit writes '' and "a={'b': True}", and Lightning's own parser takes both without a word.
    done = rehearse(source, tmp_path / "out", "cli.py", *_PARSED, isolation="loopback")
    assert done.exit_code == 0, done.log
    (line,) = [line for line in done.log.splitlines() if "parsed: " in line]
    assert json.loads(line.partition("parsed: ")[2]) == {"label": None, "mapping": {"a": {"b": True}}}


@needs("loopback", torch=True)
@pytest.mark.parametrize("program", ["stock_cli.py", "cli.py"])
def test_the_reason_of_a_wrong_hyperparameter(source, program):
    request = cli_request(source, "--isolation", "loopback", "--timeout", "150s", program, "--model.lable", "cat")
    outcome = run_request(request)
    assert outcome.exit_code == 1
    if program == "cli.py":
        # Ours names the closest hyperparameter that there is.
        assert "model.label" in outcome.failure_reason
        assert "lable" in outcome.failure_reason.partition("Command")[0]
    else:
        # Of what argparse wrote nothing reaches the console, so the summary shows it.
        assert 'ErrorMessage ""' in outcome.failure_reason
        assert "  Last error in the log of 127.0.0.1: " in outcome.as_text()
        assert "lable" in outcome.as_text().partition("Last error")[2].partition("HINT: ")[0]
        assert "lightning_sm.cli reads both" in outcome.as_text()
