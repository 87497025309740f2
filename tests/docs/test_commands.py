"""The options of ``lightning-sm`` that pages show are those of the commands."""

import contextlib
import io
import re

import pytest

from lightning_sm.__main__ import main
from tests.docs.pages import PAGES, name_of, text_of

_COMMANDS = (
    "launch",
    "tune",
    "jobs",
    "logs",
    "stop",
    "artifacts",
    "rehearse",
    "doctor",
    "plan",
    "metrics",
    "entrypoint",
)
_OF_TODAY = [page for page in PAGES if page.name.lower() != "changelog.md"]
# What follows is the project's own command.
_PROGRAM = re.compile(r"\s(?:fit|validate|test|predict|\S+\.py|--config|--trainer)\b")


@pytest.fixture(scope="module")
def options():
    found = {}
    for command in _COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
            main([command, "--help"])
        found[command] = set(re.findall(r"--[a-z][\w-]*", shown.getvalue()))
    return found


@pytest.mark.parametrize("page", _OF_TODAY, ids=name_of)
def test_options_of_commands_exist(page, options):
    pytest.importorskip("jsonargparse")
    for command, rest in re.findall(r"lightning-sm (\w+)([^`\n#]*)", text_of(page).replace("\\\n", " ")):
        own = _PROGRAM.split(rest)[0]
        unknown = set(re.findall(r"(?<!\S)(--[a-z][\w-]*)", own)) - options.get(command, set())
        assert command not in _COMMANDS or not unknown, f"lightning-sm {command} {unknown}"
