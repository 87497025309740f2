"""Packing a source folder for a job, over ``git archive HEAD | gzip -6``.

Run ``python benchmarks/pack_time.py [MIB] [--cpu] [--pairs N]``: the time until it returns, or the CPU time. The folder
holds 64 MiB (or ``MIB`` MiB) in 2,000 committed files, and 50,000 files in folders that ``.gitignore`` names. One half
of the bytes is text, the other cannot be compressed, as in a project with pictures or weights. It is made in a
temporary folder, which needs four times that space."""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from _pairs import compare, cpu_seconds, parser, wall_seconds

_SCRIPT = os.path.abspath(__file__)
_FILES, _IGNORED = 2000, 50_000
_WORDS = [
    "def",
    "return",
    "self",
    "import",
    "torch",
    "loss",
    "batch",
    "=",
    "(",
    ")",
    "[",
    "]",
    ":",
    ",",
    ".",
    "0",
    "1",
    "2",
    "model",
    "data",
    "0.001",
    "optimizer",
    "step",
    "\n",
]


def make_tree(root: Path, size: int) -> None:
    """Fill a folder with ``size`` bytes that are committed, and the files that git ignores."""
    numbers, length = random.Random(0), size // _FILES
    text = " ".join(numbers.choices(_WORDS, k=length)).encode()[:length]
    for index in range(_FILES):
        folder = root / f"part{index % 50}"
        folder.mkdir(parents=True, exist_ok=True)
        start = numbers.randrange(length)
        content = os.urandom(length) if index % 2 else text[start:] + text[:start]
        (folder / f"file{index}.py").write_bytes(content)
    for index in range(_IGNORED):
        folder = root / "outputs" / f"run{index % 100}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.log").write_text("ignored\n")
    (root / ".gitignore").write_text("outputs/\n*.pyc\n/build\n!keep.pyc\n")
    (root / "requirements.txt").write_text("lightning-sm==0\n")  # of another version, so that no wheel is added
    git = ["git", "-c", "user.name=Name", "-c", "user.email=name@example.com", "-c", "core.looseCompression=0"]
    subprocess.run([*git, "init", "--quiet"], cwd=root, check=True)
    subprocess.run([*git, "add", "."], cwd=root, check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "Files"], cwd=root, check=True)


def pack(root: str, target: str) -> None:
    """Pack as ``lightning-sm launch`` does."""
    from lightning_sm.launch._package import pack_source

    print(pack_source(Path(root), Path(target)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        pack(*sys.argv[2:])
    else:
        words = parser(__doc__)
        words.add_argument("mib", nargs="?", type=int, default=64)
        words.add_argument("--cpu", action="store_true", help="compare CPU time, which other programs disturb less")
        given = words.parse_args()
        measure, unit = (cpu_seconds, "s of CPU time") if given.cpu else (wall_seconds, "s")
        with tempfile.TemporaryDirectory() as folder:
            print("making the folder", file=sys.stderr, flush=True)
            make_tree(Path(folder, "tree"), given.mib * 2**20)
            ours = [sys.executable, _SCRIPT, "worker", f"{folder}/tree", f"{folder}/ours.tar.gz"]
            theirs = ["sh", "-c", f"git -C {folder}/tree archive HEAD | gzip -6 > {folder}/theirs.tar.gz"]
            compare(ours, theirs, measure=measure, unit=unit, pairs=given.pairs, seconds=240)
