import re

import pytest

from lightning_sm._lightning import import_hook
from lightning_sm._lightning.import_hook import check_before_import, explain_failed_import
from tests.helpers.fresh import run_fresh


@pytest.mark.parametrize("module", ["lightning.fabric", "pytorch_lightning"])
def test_nothing_of_a_compromised_release_is_executed(tmp_path, module):
    package = module.partition(".")[0]
    for folder in (tmp_path / package, tmp_path / module.replace(".", "/")):
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("say('executed')\n")
    information = tmp_path / f"{package}-2.6.3.dist-info"
    information.mkdir()
    name = package.replace("_", "-")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.6.3\n")
    said = run_fresh(
        f"""
        import sys, builtins
        builtins.say = say
        sys.path.insert(0, {str(tmp_path)!r})
        import lightning_sm
        try:
            import {module}
        except lightning_sm.errors.LightningSMError as error:
            say(str(error))
        """
    )
    says = rf"{package} was not imported: {name} 2\.6\.2 and .* compromised releases\. HINT: Put '{name}!=2\.6\.2,!="
    ((message,),) = said
    assert re.match(says, message)


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
    check_before_import("lightning")
    assert lines == [
        f"Lightning's CLI before 1.7 does not work with jsonargparse {version}. "
        "HINT: Put 'jsonargparse[signatures]==4.21.0' into requirements.txt."
        for version in [parser]
        if version
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("No module named 'pkg_resources'", "Install setuptools<81."),
        (
            "operator torchvision::nms does not exist",
            "Install the torchvision release for this torch, or uninstall it.",
        ),
        ("No module named 'numpy'", None),
    ],
)
def test_import_that_failed_for_a_known_reason(text, hint):
    error = explain_failed_import(ImportError(text))
    assert getattr(error, "hint", None) == hint
    assert error is None or text in str(error)
