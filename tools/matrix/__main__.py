"""Runs rows of the version matrix, each in a venv of its own that is removed when the row is done."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from lightning_sm._lightning.levels import SupportLevel
from tools import ROOT
from tools.matrix.rows import ROWS, Row

_REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
# It installs several GB in a third of pip's time, for any Python.
_UV = (sys.executable, "-m", "uv", "pip")
_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "tensorboard")
# What each level adds to what the lower ones run. Core: environment and ranks, strategies, the command line with its
# routing, failure reasons, the export of the state, graceful stop, and where a restart continues.
_TESTS = {
    SupportLevel.CORE: (
        "tests/callbacks/test_model_export.py",
        "tests/cli/test_bolts.py",
        "tests/cli/test_cli.py",
        "tests/cli/test_links.py",
        "tests/cli/test_precedence.py",
        "tests/cli/test_routing.py",
        "tests/cli/test_trainer_defaults.py",
        "tests/settings/test_classes.py",
        "tests/distributed",
        "tests/export/test_writer.py",
        "tests/failure/test_reason.py",
        "tests/failure/test_report.py",
        "tests/lightning",
        "tests/processes/test_smddp_standin.py",
        "tests/resume/test_levels.py",
        "tests/sagemaker/test_job.py",
        "tests/sagemaker/test_job_files.py",
        "tests/sagemaker/test_launchers.py",
        "tests/test_init.py",
        "tests/test_register.py",
    ),
    SupportLevel.EPOCH: (
        "tests/auto",
        "tests/callbacks",
        "tests/cli",
        "tests/export",
        "tests/observe",
    ),
    SupportLevel.FULL: ("tests/fits", "tests/processes", "tests/resume"),
}


def find_python(version: str) -> Optional[str]:
    """Find an interpreter of this version on the path or below pyenv's folder."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    on_path = shutil.which(f"python{version}")
    for candidate in [*candidates, *([on_path] if on_path else [])]:
        done = subprocess.run([candidate, "-c", "import ssl, venv"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


def requirements(row: Row, *, pinned: bool) -> List[str]:
    """What uv installs: the pinned file of the row, or what that file is made from."""
    if pinned:
        return ["-r", str(_REQUIREMENTS / f"{row.name}.txt")]
    lightning = [f"pytorch-lightning=={row.lightning}", *([f"lightning=={row.lightning}"] if row.both else [])]
    return [f"torch=={row.torch}", *lightning, *row.pins, *row.bolts, "jsonargparse[signatures]", *_TOOLS]


def paths_of(row: Row) -> Tuple[str, ...]:
    """What pytest is given for a row."""
    chosen = [path for level, paths in _TESTS.items() if level <= row.level for path in paths]
    return tuple(path for path in chosen if not any(path != other and path.startswith(f"{other}/") for other in chosen))


def run_row(row: Row, *, freeze: bool, extra: Sequence[str]) -> Tuple[int, float, float]:
    """Install and test one row; return the exit status and the seconds that installing and testing took.

    Args:
        row: The row.
        freeze: Whether to resolve it anew and to write the pins.
        extra: Further words for pytest.
    """
    python = find_python(row.python)
    if python is None:
        print(f"There is no Python {row.python} on this machine.", file=sys.stderr)
        return 127, 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="lightning-sm-matrix-") as folder:
        started = time.monotonic()
        inside = str(Path(folder) / "venv" / "bin" / "python")
        # The cache is beside the venv, into which its files are linked.
        install = [*_UV, "install", "-q", "--cache-dir", f"{folder}/uv", "--python", inside]

        def run(*command: str) -> int:
            return subprocess.run(command, cwd=folder, check=False).returncode

        status = (
            run(python, "-m", "venv", str(Path(folder) / "venv"))
            or run(*install, f"torch=={row.torch}")
            or (0 if keeps_torch(row, install) else 3)
            or run(*install, *requirements(row, pinned=not freeze))
            or run(*install, "--no-deps", str(ROOT))
        )
        if status:
            return status, time.monotonic() - started, 0.0
        if freeze:
            _write_pins(row, inside)
        installed = time.monotonic()
        path = f"{os.path.dirname(inside)}{os.pathsep}{os.environ['PATH']}"
        activated = {"VIRTUAL_ENV": f"{folder}/venv", "PATH": path}
        tests = {**os.environ, **activated, "LIGHTNING_SM_ROW": row.name, "OMP_NUM_THREADS": "1"}
        tests.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [inside, "-m", "pytest", "-rfEs", "-o", f"cache_dir={folder}/cache", *paths_of(row), *extra]
        status = subprocess.run(command, env=tests, cwd=ROOT, check=False).returncode
        if status == 1:
            # Once more what failed; where no test did, the run has left processes behind, and this fails, too.
            command += ["--last-failed", "--last-failed-no-failures", "none"]
            status = subprocess.run(command, env=tests, cwd=ROOT, check=False).returncode
        return status, installed - started, time.monotonic() - installed


def keeps_torch(row: Row, install: Sequence[str]) -> bool:
    """Whether the row's line for ``requirements.txt`` installs Lightning and leaves the installed torch alone."""
    command = [*(word for word in install if word != "-q"), "--dry-run", *row.line.split()]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    would = [line.split("==")[0].strip() for line in done.stderr.splitlines() if line.startswith((" + ", " - "))]
    if done.returncode or "+ pytorch-lightning" not in would or "- torch" in would or "+ torch" in would:
        print(f"{row.line!r} does not leave torch {row.torch} alone: {done.stderr[-500:]}")
        return False
    return True


def _write_pins(row: Row, python: str) -> None:
    command = [*_UV, "freeze", "--python", python]
    listing = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    leave_out = ("lightning-sm", "lightning_sm", "-e", "pip=", "wheel=")
    lines = [line for line in listing.splitlines() if not line.startswith(leave_out)]
    _REQUIREMENTS.mkdir(exist_ok=True)
    (_REQUIREMENTS / f"{row.name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the chosen rows; return 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names of rows; see --list")
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--freeze", action="store_true", help="resolve anew and write the pinned requirements")
    parser.add_argument("--pytest", action="append", default=[], metavar="WORD", help="a further word for pytest")
    chosen = parser.parse_args(arguments)
    names = {row.name: row for row in ROWS}
    wanted = list(names) if chosen.all else chosen.rows
    unknown = [name for name in wanted if name not in names]
    if chosen.list or unknown or not wanted:
        print("\n".join([*(f"no such row: {name}" for name in unknown), *names]))
        return 0 if chosen.list else 2

    results: List[Tuple[str, int, float, float]] = []
    for name in wanted:
        print(f"== {name}", flush=True)
        status, install, test = run_row(names[name], freeze=chosen.freeze, extra=chosen.pytest)
        print(f"== {name}: {'passed' if status == 0 else f'FAILED ({status})'}", flush=True)
        results.append((name, status, install, test))
    print("\nrow | result | install s | tests s")
    for name, status, install, test in results:
        print(f"{name} | {'passed' if status == 0 else f'FAILED ({status})'} | {install:.0f} | {test:.0f}")
    return 0 if all(status == 0 for _, status, _, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
