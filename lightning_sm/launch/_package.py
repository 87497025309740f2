"""Packs the source folder of a job: what git ignores stays out, secrets and large files are refused."""

import base64
import fnmatch
import gzip
import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Dict, Iterator, List, Sequence, Tuple

import lightning_sm._version as version
import lightning_sm_entry
from lightning_sm.errors import LaunchError

__all__ = ["PackedSource", "pack_source", "packed_files"]

_NEVER = (".git", "__pycache__", ".venv", "venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints")
# Names of files that hold credentials, as secret scanners list them.
_SECRET_NAMES = (
    ".env", ".env.*", "*.pem", "*.p12", "*.pfx", "*.key", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc",
    "credentials", "credentials.json", ".pypirc", ".git-credentials", "kubeconfig", "*.kdbx", "*.jks",
)  # fmt: skip
_VENV = "pyvenv.cfg"
_LARGE = 100 * 1024 * 1024
_REQUIREMENTS = "requirements.txt"
# A requirement of this package: its name, or the path or address of an archive of it.
_OURS = re.compile(
    r"^[ \t]*(?:[^#\s]*/)?lightning[-_.]sm(?:\[[\w,\s-]*\])?(?P<rest>(?![\w.])(?!-(?!\S*\.(?:whl|tar\.gz)))[^#\n]*)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class PackedSource:
    """A source archive.

    Args:
        files: The files in it.
        size: Their size in bytes.
        archive_size: The size of the archive in bytes.
    """

    files: int
    size: int
    archive_size: int

    def __str__(self) -> str:
        return f"{self.files} files, {_megabytes(self.size)} ({_megabytes(self.archive_size)} packed)"


def pack_source(source_dir: Path, target: Path, *, allowed: Sequence[str] = ()) -> PackedSource:
    """Write ``sourcedir.tar.gz`` of a folder.

    What git ignores stays out, also by files above the folder, and so do ``.git``, caches and virtual environments.
    A wheel of this package is added, with a line in ``requirements.txt``, unless that names another version or place of
    the package. The same files give the same bytes.

    Args:
        source_dir: The folder.
        target: The archive to write.
        allowed: Paths in the folder that are packed although they are large or look like secrets.

    Raises:
        LaunchError: There is no such folder, git is missing, or a file is large or looks like a secret.

    Source: ``tar_and_upload_dir`` in ``sagemaker/fw_utils.py`` of aws/sagemaker-python-sdk.
    """
    files, added = packed_files(source_dir), _added(source_dir)
    _refuse(source_dir, files, allowed)
    size = 0
    try:
        # The time in gzip's header would make equal sources different.
        with target.open("wb") as raw, gzip.GzipFile(
            filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0
        ) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            for name in (*(name for name in files if name not in added), *sorted(added)):
                entry = tarfile.TarInfo(name)
                with io.BytesIO(added[name]) if name in added else (source_dir / name).open("rb") as file:
                    status = None if name in added else os.fstat(file.fileno())
                    entry.size = status.st_size if status else len(added[name])
                    entry.mode = 0o755 if status and status.st_mode & 0o100 else 0o644
                    archive.addfile(entry, file)
                size += entry.size
    except OSError as error:
        raise LaunchError(
            f"{source_dir} cannot be packed: {error}.", hint="Make the file readable, or name it in .gitignore."
        ) from error
    return PackedSource(len({*files, *added}), size, target.stat().st_size)


def packed_files(source_dir: Path) -> List[str]:
    """Return the paths of the files in a folder that are packed.

    Raises:
        LaunchError: There is no such folder, it cannot be read, or git is missing.
    """
    if not source_dir.is_dir():
        raise LaunchError(
            f"--source-dir {source_dir} is no folder in {Path.cwd()}.", hint="Name the folder with the program."
        )
    if shutil.which("git") is None:
        raise LaunchError("git, which reads .gitignore, is missing.", hint="Install git.")
    try:
        return sorted(set(_files(source_dir, source_dir)))
    except OSError as error:
        raise LaunchError(
            f"{source_dir} cannot be read: {error}.", hint="Mend the link or the rights, or name it in .gitignore."
        ) from error


def _files(root: Path, folder: Path) -> Iterator[str]:
    """Yield the files to pack in a folder, relative to the root."""
    names = _listed(folder)
    # Python marks a virtual environment by this file, whatever its folder is called.
    environments = tuple(name[: -len(_VENV)] for name in names if name.endswith(f"/{_VENV}"))
    for name in names:
        path = folder / name
        if not set(PurePosixPath(name).parts).isdisjoint(_NEVER) or name.startswith(environments):
            continue
        if path.is_file():
            yield path.relative_to(root).as_posix()
        elif path.is_dir() and any(path.iterdir()) and not (path / _VENV).exists():
            # A link, a submodule, or another repository.
            here, target, top = path.parent.resolve(), path.resolve(), root.resolve()
            if path.is_symlink() and (target in (here, *here.parents) or top in (target, *target.parents)):
                raise LaunchError(
                    f"{path} is a link to a folder that is packed already.", hint="Name it in .gitignore."
                )
            yield from _files(root, path)


def _listed(folder: Path) -> List[str]:
    """The files in a folder that git tracks or does not ignore, and the links and repositories to folders."""
    with tempfile.TemporaryDirectory() as place:
        repository: List[str] = []
        if _git(folder, "check-ignore", "-q", ".").returncode != 1:
            # In no repository, or in one that ignores the whole folder, such as one of the home directory: its own
            # .gitignore files alone hold.
            _git(folder, "init", "-q", "--template=", place)
            repository = [f"--git-dir={place}/.git", f"--work-tree={folder.resolve()}"]
        listed = _git(folder, *repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]


def _git(folder: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    # A hook of git's, such as one that launches, has variables of its own repository.
    own = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    environ = {**{name: value for name, value in os.environ.items() if name not in own}, "LC_ALL": "C"}
    done = subprocess.run(["git", "-C", str(folder), *words], env=environ, capture_output=True, check=False)
    is_outside = b"not a git repository" in done.stderr
    if (done.returncode > 1 and not is_outside) or b"could not open" in done.stderr:
        text = " ".join(done.stderr.decode(errors="replace").split())
        raise LaunchError(f"git cannot list the files in {folder}: {text}", hint="Mend what git names.")
    return done


def _refuse(root: Path, files: Sequence[str], allowed: Sequence[str]) -> None:
    kept = {PurePosixPath(name).as_posix() for name in allowed}
    secrets = [
        name
        for name in files
        if name not in kept and any(fnmatch.fnmatch(name.rpartition("/")[2], pattern) for pattern in _SECRET_NAMES)
    ]
    if secrets:
        raise LaunchError(
            f"{', '.join(secrets[:5])} in {root} may hold secrets, and would be uploaded.",
            hint=f"Name it in .gitignore, or allow it: --allow-file {secrets[0]}.",
        )
    large = [(name, (root / name).stat().st_size) for name in files if name not in kept]
    large = [(name, size) for name, size in large if size > _LARGE]
    if large:
        shown = ", ".join(f"{name} ({_megabytes(size)})" for name, size in large[:5])
        raise LaunchError(
            f"{shown} in {root} would be uploaded and copied to every host at each start.",
            hint=f"Bring data in a channel and name it in .gitignore, or allow it: --allow-file {large[0][0]}.",
        )


def _added(root: Path) -> Dict[str, bytes]:
    """The wheel of this package and the requirements with it, unless these name a version or place of their own."""
    path = root / _REQUIREMENTS
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise LaunchError(f"{path} is not UTF-8: {error}.", hint="Save it in that encoding.") from error
    if any(match["rest"].strip() not in ("", f"=={version.__version__}") for match in _OURS.finditer(text)):
        return {}
    name, content = _wheel()
    # Where one requirement has hashes, pip wants them of all.
    hashes = f" --hash=sha256:{hashlib.sha256(content).hexdigest()}" if "--hash" in text else ""
    lines = [*text.splitlines(), f"./{name}{hashes}"]
    return {_REQUIREMENTS: "".join(f"{line}\n" for line in lines).encode(), name: content}


def _wheel() -> Tuple[str, bytes]:
    """Make a wheel of the package as it is installed here; an index may not have this version."""
    package = Path(version.__file__).parent
    try:
        metadata = importlib.metadata.distribution("lightning-sm")
        texts = {name: metadata.read_text(name) for name in ("METADATA", "entry_points.txt")}
    except importlib.metadata.PackageNotFoundError as error:
        raise LaunchError(
            "lightning-sm is not installed here, so that no wheel of it can be made.",
            hint="pip install it, or name it in requirements.txt of the source folder.",
        ) from error
    info = f"lightning_sm-{version.__version__}.dist-info"
    files: List[Tuple[str, bytes]] = []
    for path in (*sorted(package.rglob("*")), Path(lightning_sm_entry.__file__)):
        if path.is_file() and "__pycache__" not in path.parts:
            above = package.parent if package in path.parents else path.parent
            files.append((path.relative_to(above).as_posix(), path.read_bytes()))
    files += [
        *((f"{info}/{name}", text.encode()) for name, text in texts.items() if text),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: lightning-sm\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files:
            wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return f"lightning_sm-{version.__version__}-py3-none-any.whl", buffer.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
