"""README and pages: links, code, names of files and the words of messages are those of the repository."""

import ast
import dataclasses
import re

import pytest

import lightning_sm
from tests.docs.pages import PAGES, ROOT, blocks, headings, links, name_of, text_of

_REPOSITORY = re.compile(r"https://github\.com/lightning-sm/lightning-sm/(?:blob|tree)/main/")
# The name of the package as pip looks it up on an index, with or without an extra or a version; no file and no folder.
_ON_AN_INDEX = re.compile(r"""(?<![\w./-])lightning[-_]sm(?=$|[\s"'`,;@=<>~!\[])(?!-\d)""")
_EXAMPLES = [path for kind in ("*.md", "*.txt", "*.ipynb", "*.yaml") for path in (ROOT / "examples").rglob(kind)]
pages = pytest.mark.parametrize("page", PAGES, ids=name_of)
# The changelog tells of files as they were.
_OF_TODAY = [page for page in PAGES if page.name.lower() != "changelog.md"]


@pytest.mark.parametrize(
    ("name", "most"), [("README.md", 8_000), ("docs/troubleshooting.md", 12_000), ("docs/architecture.md", 7_500)]
)
def test_pages_that_are_to_be_short_are(name, most):
    assert len((ROOT / name).read_bytes()) <= most


@pages
def test_links_lead_to_files_and_headings(page):
    for link in links(page):
        target, _, anchor = _REPOSITORY.sub(f"{ROOT}/", link).partition("#")
        if re.match(r"\w+:", target):
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{link} leads nowhere"
        if anchor and "/api/" not in str(found.resolve()):
            assert anchor in headings(found), f"{link} names no heading"


@pytest.mark.parametrize("page", [*_OF_TODAY, *_EXAMPLES], ids=name_of)
def test_what_pip_is_told_is_on_no_index(page):
    """Neither the name on an index nor the repository's address belongs to anybody, so that anybody could take it."""
    text = text_of(page)
    told = re.findall(r"\bpip3? (?:install|wheel|download) ([^`\n]*)", text)
    # Lines of a requirements.txt: of the file, or of a block with a pin or a wheel.
    pinned = [block for block in blocks(page, "") if re.search(r"==|\.whl", block)]
    lines = (text if page.suffix == ".txt" else "".join(pinned)).splitlines()
    told += [line for line in lines if not line.startswith("#")]
    assert [line for line in told if _ON_AN_INDEX.search(line) or "github.com/lightning-sm" in line] == []
    assert "git+https://github.com/lightning-sm" not in text


def test_the_menu_has_each_page_once_and_the_overview_links_to_it():
    yaml = pytest.importorskip("yaml")
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = sorted(re.findall(r"'([\w/]+\.md)'", str(menu)))
    assert found == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert set(found) <= {"index.md", *links(ROOT / "docs" / "index.md")}


@pages
def test_python_blocks(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lightning_sm":
                assert node.attr in lightning_sm.__all__, block
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_sm"):
                module = __import__(node.module, fromlist=["__all__"])
                assert {each.name for each in node.names} <= set(module.__all__), block


@pages
def test_yaml_blocks(page):
    yaml = pytest.importorskip("yaml")
    options = {option.name for option in dataclasses.fields(lightning_sm.SageMakerOptions)}
    for block in blocks(page, "yaml"):
        content = yaml.safe_load(block)
        assert set(content.get("sagemaker") or {}) <= options, block


@pytest.mark.parametrize("page", _OF_TODAY, ids=name_of)
def test_files_and_programs_that_are_named_exist(page):
    text = text_of(page)
    quoted = re.findall(r"`((?:tests|tools|docs|examples|benchmarks|lightning_sm)/[\w./*-]*)`", text)
    for name in [*quoted, *re.findall(r"\bpytest (tests/[\w./-]*)", text)]:
        assert list(ROOT.glob(name.rstrip("/"))), f"{name} is no file of the repository"
    for name in re.findall(r"python -m ((?:tools|tests|lightning_sm)[\w.]*)", text):
        path = ROOT.joinpath(*name.rstrip(".").split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"python -m {name}"
