"""``mkdocs build --strict``, and that the API reference has every public name."""

import importlib.util
import subprocess
import sys

import pytest

import lightning_sm.errors
from tests.docs.pages import ROOT

_NEEDED = ("mkdocs", "material", "mkdocstrings_handlers")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: the extra `docs` has them")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        assert "fonts.googleapis.com" not in text
        assert 'src="http' not in text, page


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("errors", [f"lightning_sm.errors.{name}" for name in lightning_sm.errors.__all__]),
        ("callbacks", [f"lightning_sm.callbacks.{name}" for name in ("AutoResume", "GracefulStop", "ModelExport")]),
        ("lightning_sm", [f"lightning_sm.{name}" for name in ("Topology", "TrainingJob", "job", "trainer_settings")]),
        ("cli", ["lightning_sm.cli.SageMakerCLI", "lightning_sm.cli.main"]),
        ("strategies", ["lightning_sm.strategies.SMDDPStrategy"]),
        ("rehearse", ["lightning_sm.rehearse.main"]),
    ],
)
def test_the_reference_has_public_names(site, page, names):
    text = (site / "api" / page / "index.html").read_text(encoding="utf-8")
    assert [name for name in names if f'id="{name}"' not in text] == []


def test_roles_of_docstrings_become_links(site):
    for page in (site / "api").rglob("index.html"):
        assert ":class:" not in page.read_text(encoding="utf-8"), page
