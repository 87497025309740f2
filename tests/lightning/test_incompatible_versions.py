import logging
import sys
import types

import pytest

from lightning_sm._lightning import import_hook
from lightning_sm._lightning.import_hook import (
    check_before_import,
    explain_failed_import,
    known_incompatibilities,
    log_if_unverified,
)
from lightning_sm._lightning.namespaces import installed_namespaces
from lightning_sm._logging import log
from lightning_sm.errors import LightningSMError

_PARSER = "jsonargparse[signatures]==4.21.0"


@pytest.mark.parametrize(
    ("versions", "pins"),
    [
        ({}, []),
        ({"pytorch-lightning": (2, 6, 6), "jsonargparse": (4, 53, 0), "torchmetrics": (1, 9, 0)}, []),
        ({"pytorch-lightning": (2, 6, 2)}, ["pytorch-lightning!=2.6.2,!=2.6.3"]),
        ({"lightning": (2, 6, 3)}, ["lightning!=2.6.2,!=2.6.3"]),
        ({"pytorch-lightning": (1, 5, 10), "jsonargparse": (4, 22, 0)}, [_PARSER]),
        ({"pytorch-lightning": (1, 6, 5), "jsonargparse": (4, 8, 0)}, [_PARSER]),
        ({"pytorch-lightning": (1, 6, 5), "jsonargparse": (4, 9, 0)}, []),
        ({"pytorch-lightning": (1, 6, 5), "jsonargparse": (4, 21, 2)}, []),
        ({"pytorch-lightning": (1, 7, 7), "jsonargparse": (4, 53, 0), "torchmetrics": (0, 11, 4)}, []),
        ({"pytorch-lightning": (1, 7, 7), "torchmetrics": (1, 0, 0)}, ["torchmetrics<1"]),
        ({"pytorch-lightning": (1, 9, 5), "torchmetrics": (1, 0, 0)}, []),
    ],
)
def test_known_faults(versions, pins):
    assert [fault.pin for fault in known_incompatibilities(versions)] == pins


@pytest.mark.parametrize("package", ["lightning", "pytorch-lightning"])
def test_compromised_release_is_not_imported(monkeypatch, package):
    monkeypatch.setattr(import_hook, "installed_versions", lambda: {package: (2, 6, 3)})
    says = r"lightning\S* was not imported: .* compromised releases\. HINT: Put .*!=2\.6\.2,!=2\.6\.3"
    with pytest.raises(LightningSMError, match=says):
        check_before_import(installed_namespaces()[0])


def test_other_faults_are_told(monkeypatch):
    told = []
    versions = {"pytorch-lightning": (1, 7, 0), "torchmetrics": (1, 2, 0)}
    monkeypatch.setattr(log, "warning", lambda *args: told.append(args[0] % args[1:]))
    monkeypatch.setattr(import_hook, "installed_versions", lambda: versions)
    check_before_import(installed_namespaces()[0])
    assert told == [
        "Lightning 1.7 cannot be imported beside torchmetrics 1 and later. "
        "HINT: Put 'torchmetrics<1' into requirements.txt."
    ]


def test_what_is_installed_here_has_no_faults():
    assert known_incompatibilities(import_hook.installed_versions()) == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("No module named 'pkg_resources'", "Install setuptools<81."),
        (
            "operator torchvision::nms does not exist",
            "Install the torchvision release for this torch, or uninstall it.",
        ),
    ],
)
def test_import_that_failed_for_a_known_reason(text, hint):
    error = explain_failed_import(ImportError(text))
    assert error.hint == hint
    assert text in str(error)


def test_import_that_failed_for_another_reason():
    assert explain_failed_import(ImportError("No module named 'numpy'")) is None


@pytest.mark.parametrize(("version", "lines"), [("2.13.0+cpu", 0), ("9.9.0", 1)])
def test_unverified_pair_is_a_debug_line(monkeypatch, version, lines):
    torch = types.ModuleType("torch")
    vars(torch)["__version__"] = version
    monkeypatch.setitem(sys.modules, "torch", torch)
    told = []
    monkeypatch.setattr(log, "debug", lambda *args: told.append(args[0] % args[1:]))
    log_if_unverified(types.SimpleNamespace(name="pytorch_lightning", version=(2, 6)))
    assert len(told) == lines
    assert all("lightning_sm is not tested with pytorch_lightning 2.6 and torch 9.9." in line for line in told)


def test_debug_lines_are_not_shown_by_default():
    assert log.level > logging.DEBUG
