"""The doctor over the files and variables of real jobs, as SageMaker's toolkits left them."""

import json
from pathlib import Path

import pytest

from lightning_sm import _doctor
from lightning_sm._doctor import SECTIONS, Machine, Status, command

_RECORDED = sorted((Path(__file__).parents[1] / "toolkits" / "recorded").glob("*.json"))


def ranks():
    for path in _RECORDED:
        for name, rank in json.loads(path.read_text())["ranks"].items():
            yield pytest.param(rank, id=f"{path.stem}-{name}")


def save(folder, rank):
    for name, content in rank["files"].items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("rank", ranks())
def test_saved_files_are_examined_anywhere(tmp_path, rank, capsys):
    assert _doctor.main(["--config-dir", str(save(tmp_path, rank)), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["host"] == rank["files"]["resourceconfig.json"]["current_host"]
    listed = content["findings"]
    assert not [each for each in listed if "could not be examined" in each["text"]]
    # Nothing of this machine.
    assert not {each["section"] for each in listed} & {"Network", "Software", "Hardware"}


@pytest.mark.parametrize("rank", ranks())
def test_variables_of_real_ranks_show_their_ranks(tmp_path, rank):
    environ = {**rank["variables"], "SM_INPUT_CONFIG_DIR": str(save(tmp_path, rank))}
    machine = Machine.read(environ, root=tmp_path)
    findings = command.examine({"Job and ranks": SECTIONS["Job and ranks"]}, machine)["Job and ranks"]
    assert not [each for each in findings if each.status == Status.ERROR], findings
    text = next(each.text for each in findings if each.check == "ranks")
    truth = rank["truth"]
    if machine.topology.is_external:
        assert text.startswith(f"rank {truth['global_rank']} of {truth['world_size']} ")
    else:
        assert text.startswith(("local rank", "node "))
