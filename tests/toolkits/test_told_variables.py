"""What the toolkit and mpirun change on the way to a program: what it finds without this package, and what with us."""

import importlib.util
import json

import pytest

from lightning_sm.rehearse import rehearse as run_request
from tests.helpers.rehearsal import cli_request, needs

from .running import needs_launch, rehearse

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
]


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
def test_the_reason_of_a_wrong_hyperparameter(source):
    request = cli_request(source, "--isolation", "loopback", "--timeout", "150s", "cli.py", "--model.lable", "cat")
    outcome = run_request(request)
    assert outcome.exit_code == 1
    # Ours names the closest hyperparameter that there is.
    assert "model.label" in outcome.failure_reason
    assert "lable" in outcome.failure_reason.partition("Command")[0]
