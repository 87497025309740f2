import pytest

from lightning_sm._lightning import import_hook
from lightning_sm._lightning.import_hook import check_before_import, explain_failed_import
from lightning_sm._lightning.namespaces import installed_namespaces
from lightning_sm.errors import LightningSMError


@pytest.mark.parametrize("package", ["lightning", "pytorch-lightning"])
def test_compromised_release_is_not_imported(monkeypatch, package):
    monkeypatch.setattr(import_hook, "installed_versions", lambda: {package: (2, 6, 3)})
    says = r"lightning\S* was not imported: .* compromised releases\. HINT: Put .*!=2\.6\.2,!=2\.6\.3"
    with pytest.raises(LightningSMError, match=says):
        check_before_import(installed_namespaces()[0])


@pytest.mark.parametrize(
    ("versions", "parser"),
    [
        ({}, None),
        ({"pytorch-lightning": (2, 6, 6), "jsonargparse": (4, 53, 0)}, None),
        ({"pytorch-lightning": (1, 5, 10), "jsonargparse": (4, 22, 0)}, "4.22.0"),
        ({"pytorch-lightning": (1, 6, 5), "jsonargparse": (4, 8, 0)}, "4.8.0"),
        ({"pytorch-lightning": (1, 6, 5), "jsonargparse": (4, 9, 0)}, None),
        ({"pytorch-lightning": (1, 6, 5), "jsonargparse": (4, 21, 2)}, None),
        ({"pytorch-lightning": (1, 7, 7), "jsonargparse": (4, 53, 0)}, None),
    ],
)
def test_a_parser_that_does_not_work_is_told(monkeypatch, lines, versions, parser):
    monkeypatch.setattr(import_hook, "installed_versions", lambda: versions)
    check_before_import(installed_namespaces()[0])
    assert lines == [
        f"Lightning's CLI before 1.7 does not work with jsonargparse {version}. "
        "HINT: Put 'jsonargparse[signatures]==4.21.0' into requirements.txt."
        for version in [parser]
        if version
    ]


def test_what_is_installed_here_has_no_faults(lines):
    check_before_import(installed_namespaces()[0])
    assert lines == []


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
