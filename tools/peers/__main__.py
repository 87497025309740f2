"""Lets Lightning's own tests judge our classes in the place of theirs, and compares with how theirs end."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from tools import ROOT
from tools.peers.comparison import Comparison, compare
from tools.peers.plugin import ALONE, IMPORTED, SWAPPED
from tools.peers.suites import EXPECTED, SUITES, Suite

_PACKAGE = "lightning"
_FOLDERS = ("tests_fabric", "tests_pytorch")
_SECONDS = 1800

Outcomes = Dict[str, Tuple[str, str]]


def copied(checkout: Path, folder: Path) -> Path:
    """Copy tests and pytest's settings, so that no run leaves anything in the checkout; return the copy's ``tests``."""
    tests = folder / "checkout" / "tests"
    for name in _FOLDERS:
        shutil.copytree(str(checkout / "tests" / name), str(tests / name))
    shutil.copy(str(checkout / "pyproject.toml"), str(folder / "checkout"))
    return tests


def checkout_version(checkout: Path) -> Optional[str]:
    """The version that a checkout names, if it has the file."""
    for name in ("src/version.info", f"src/{_PACKAGE}/version.info"):
        if (checkout / name).is_file():
            return (checkout / name).read_text(encoding="utf-8").strip()
    return None


def run(suite: Suite, mode: str, tests: Path, folder: Path) -> Outcomes:
    """Run one file of tests in a process of its own, from Lightning's ``tests`` and with its settings.

    Raises:
        RuntimeError: The run ended without outcomes.
        TimeoutExpired: It did not end in time.
    """
    file = folder / "outcomes.json"
    file.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    environ.setdefault("OMP_NUM_THREADS", "1")
    plugin = ["-p", "tools.peers.plugin", "--lightning-sm", mode, "--lightning-sm-outcomes", str(file)]
    settings = ["-c", "../pyproject.toml", "--rootdir=.", "-p", "no:cacheprovider", "-q", "--color=no"]
    command = [sys.executable, "-m", "pytest", *plugin, *settings, suite.path]
    done = subprocess.run(
        command,
        cwd=str(tests),
        env=environ,
        timeout=_SECONDS,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if not file.exists():
        raise RuntimeError(f"{suite.path} ({mode}) gave no outcomes:\n{done.stdout[-3000:]}")
    return {test: (outcome, message) for test, (outcome, message) in json.loads(file.read_text("utf-8")).items()}


def _only(outcomes: Outcomes) -> Mapping[str, str]:
    return {test: outcome for test, (outcome, _) in outcomes.items()}


def _counts(outcomes: Outcomes) -> str:
    found = Counter(outcome for outcome, _ in outcomes.values())
    return ", ".join(f"{found[name]} {name}" for name in sorted(found)) or "none"


def _tell(comparison: Comparison, outcomes: Outcomes) -> None:
    for test in comparison.failed_alone:
        print(f"  fails without us: {test}")
    for test in comparison.expected:
        print(f"  expected difference: {test}: {EXPECTED[test]}")
    for test, how in comparison.unexpected.items():
        message = outcomes.get(test, ("", ""))[1]
        print(f"  UNEXPECTED: {test}: {how}\n    {message}".rstrip())
    for test, why in comparison.settled.items():
        print(f"  NO DIFFERENCE ANY MORE: {test}: {why}")


def judge(suites: Sequence[Suite], tests: Path, folder: Path) -> bool:
    """Run suites without and with us, say how they differ, and return whether all is as expected."""
    lines: List[str] = []
    good = True
    for suite in suites:
        started = time.monotonic()
        print(f"== {suite.path}", flush=True)
        alone = run(suite, ALONE, tests, folder)
        mode = SWAPPED if suite.swapped else IMPORTED
        with_us = run(suite, mode, tests, folder)
        expected = {test: why for test, why in EXPECTED.items() if test.startswith(f"{suite.path}::")}
        comparison = compare(_only(alone), _only(with_us), expected)
        _tell(comparison, with_us)
        good = good and comparison.is_good
        verdict = "as expected" if comparison.is_good else "FAILED"
        seconds = time.monotonic() - started
        lines.append(f"{suite.name} | {_counts(alone)} | {mode}: {_counts(with_us)} | {verdict} | {seconds:.0f}")
        print(f"  {verdict}", flush=True)
    print("\nsuite | Lightning alone | with us | result | s")
    print("\n".join(lines))
    return good


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the chosen suites; return 0 if every difference is an expected one."""
    names = {suite.name: suite for suite in SUITES}
    parser = argparse.ArgumentParser(prog="python -m tools.peers", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one or more of {', '.join(names)}; else all")
    parser.add_argument(
        "--checkout", type=Path, metavar="PATH", required=True, help="Lightning's repository at the installed version"
    )
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.suites if name not in names]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(names)}")
    wanted = [names[name] for name in chosen.suites] or list(SUITES)
    installed, found = version(_PACKAGE), checkout_version(chosen.checkout)
    print(f"{_PACKAGE} {installed}, its tests of version {found or 'unknown'}")
    if found is not None and _minor(found) != _minor(installed):
        parser.error(f"These tests are of {found}, and {installed} is installed.")
    with tempfile.TemporaryDirectory(prefix="lightning-sm-peers-") as temporary:
        folder = Path(temporary).resolve()
        return 0 if judge(wanted, copied(chosen.checkout, folder), folder) else 1


def _minor(text: str) -> List[str]:
    return re.findall(r"\d+", text)[:2]


if __name__ == "__main__":
    sys.exit(main())
