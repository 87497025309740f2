"""``mkdocs build --strict``, and that the API reference has every public name."""

import importlib
import importlib.util
import re
import subprocess
import sys

import pytest

from lightning_sm import strategies
from tests.docs.pages import ROOT

_NEEDED = ("mkdocs", "material", "mkdocstrings_handlers")
# Another name of a class there, and constants.
_NO_ENTRY = {"SMDDPPlugin", "TOPOLOGY_MARKER", "__version__"}


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


def test_pages_load_nothing_from_other_hosts_and_show_no_roles(site):
    for page in site.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        assert "fonts.googleapis.com" not in text
        assert 'src="http' not in text, page
        assert not re.search(r'<link[^>]+(stylesheet|icon|preconnect)"[^>]+href="http', text), page
        # Roles of docstrings become links.
        assert ":class:" not in text, page
        # For a link to a repository the theme's script asks GitHub's API for its stars.
        assert 'data-md-component="source"' not in text, page


@pytest.mark.parametrize("module", ["", ".callbacks", ".strategies", ".cli", ".errors", ".launch", ".rehearse"])
def test_the_reference_has_every_public_name(site, module):
    page = site / "api" / (module[1:] or "lightning_sm") / "index.html"
    text = page.read_text(encoding="utf-8")
    names = {*importlib.import_module(f"lightning_sm{module}").__all__} - _NO_ENTRY
    if not module:  # these are on the pages of other modules
        names -= {"ModelExport", "SageMakerCLI", *strategies.__all__}
    assert [name for name in sorted(names) if f'id="lightning_sm{module}.{name}"' not in text] == []


def test_members_of_an_enumeration_have_their_comments(site):
    text = (site / "api" / "lightning_sm" / "index.html").read_text(encoding="utf-8")
    assert "Open MPI, of the distribution" in text
