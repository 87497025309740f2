"""What the toolkit changes in arguments on their way to a program. Variables: ``test_recorded.py``."""

import json

import pytest

from tests.helpers.rehearsal import needs

from .running import rehearse

pytestmark = pytest.mark.full


_PARSED = ("--model.label", "null", "--model.mapping", '{"a": {"b": true}}')


@needs("loopback", torch=True)
def test_none_and_dicts_on_their_way_through_the_toolkit(source, tmp_path):
    # The toolkit writes '' and "a={'b': True}", and Lightning's own parser takes both without a word.
    done = rehearse(source, tmp_path / "out", "cli.py", *_PARSED, isolation="loopback")
    (line,) = [line for line in done.log.splitlines() if "parsed: " in line]
    assert json.loads(line.partition("parsed: ")[2]) == {"label": None, "mapping": {"a": {"b": True}}}


@needs("loopback", torch=True)
def test_the_reason_of_a_wrong_hyperparameter(source, tmp_path):
    done = rehearse(source, tmp_path / "out", "cli.py", "--model.lable", "cat", exit_code=1, isolation="loopback")
    # Ours names the closest hyperparameter that there is.
    reason = done.summary["failure_reason"]
    assert "model.label" in reason
    assert "lable" in reason.partition("Command")[0]
