import sys

import pytest

from lightning_sm import __main__ as entry


def test_other_words_are_the_clis(monkeypatch):
    received = []
    monkeypatch.setattr("lightning_sm.cli.main", received.append)
    assert entry.main(["fit", "--config", "a.yaml"]) is None
    monkeypatch.setattr(sys, "argv", ["lightning-sm", "test"])
    entry.main()
    assert received == [["fit", "--config", "a.yaml"], ["test"]]


def test_rehearse_is_its_own_room(monkeypatch):
    received = []
    monkeypatch.setattr("lightning_sm.rehearse.main", lambda words: received.append(words) or 3)
    assert entry.main(["rehearse", "--hosts", "2"]) == 3
    assert received == [["--hosts", "2"]]


@pytest.mark.parametrize("command", [["-m", "lightning_sm"], ["-c", "from lightning_sm.__main__ import main; main()"]])
def test_the_console_script_fits(command, opt_ml, monkeypatch):
    from tests.projects.container import Container

    container = Container(opt_ml, monkeypatch)
    ran = container.run(*command, "fit", "--trainer.fast_dev_run=true")
    assert ran.returncode == 0, ran.stderr
    assert container.summary["class_path"] == "tiny_model.TinyModel"
