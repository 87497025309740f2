"""``python -m tools.docs``: the tables in the pages are those that the code makes."""

import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT
from tools import docs


@pytest.mark.full
def test_the_pages_are_up_to_date():
    pytest.importorskip("pytorch_lightning")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.docs", "--check"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_page_fails_and_is_written_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(docs, "TABLES", {"options": lambda: "| `async_save` |\n"})
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- generated: options -->\n<!-- end: options -->\n")
    assert docs.main(["--docs", str(tmp_path)]) == 0
    assert docs.main(["--docs", str(tmp_path), "--check"]) == 0
    before = page.read_text()
    page.write_text(before.replace("| `async_save` |", "| `sync_save` |"))
    assert docs.main(["--docs", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr().out
    assert "-| `sync_save` |" in said
    assert "+| `async_save` |" in said
    assert "HINT: Run python -m tools.docs." in said
    assert docs.main(["--docs", str(tmp_path)]) == 0
    assert page.read_text() == before
