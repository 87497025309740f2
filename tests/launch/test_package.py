"""The source archive."""

import subprocess
import sys
import tarfile

import pytest

from lightning_sm._version import __version__
from lightning_sm.launch import LaunchError
from lightning_sm.launch._package import pack_source

WHEEL = f"lightning_sm-{__version__}-py3-none-any.whl"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    return folder


def pack(source, **options):
    path = source.parent / "sourcedir.tar.gz"
    pack_source(source, path, **options)
    with tarfile.open(path) as archive:
        return path, {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}


def write(folder, **files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(folder, *words):
    user = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.split("\0")[:-1]


def packed(source):
    return set(pack(source)[1]) - {WHEEL, "requirements.txt"}


@pytest.mark.parametrize("is_repository", [True, False])
def test_as_git_itself_sees_it(source, is_repository):
    ignored = {
        ".gitignore": "*.log\n!keep.log\nbuild/\n/top\n**/cache/*\n!**/cache/keep\n",
        "sub/.gitignore": "*.tmp\n",
        "sub/deep/.gitignore": "!keep.tmp\n",
        "code/.gitignore": "*\n!*/\n!*.py\n",
    }
    names = ("a.log", "keep.log", "build/x", "sub/build/y", "top", "sub/top", "cache/a", "cache/keep", "s/cache/b")
    names = (*names, "sub/b.tmp", "sub/deep/keep.tmp", "u.py", "code/in/a.py", "code/in/a.txt", 'é "1"\n.py')
    write(source, **ignored, **{name: name for name in names})
    git(source, "init", "-q")
    listed = git(source, "ls-files", "--others", "--exclude-standard", "-z")
    # These are left out whatever git says of them.
    write(source, **{name: name for name in ("__pycache__/a.pyc", ".venv/lib/x.py")})
    write(source, **{name: name for name in ("sub/env/pyvenv.cfg", "sub/env/lib/x.py")})
    (source / "sub" / "env" / "lib64").symlink_to("lib")
    (source / "sub" / "linked").symlink_to("env")
    if not is_repository:
        (source / ".git").rename(source.parent / "elsewhere")
    assert packed(source) == set(listed)


def test_files_of_repositories_around_and_within_the_folder(source, monkeypatch):
    write(source.parent, **{"above/.gitignore": "tokens.yaml\nother/\n", "made/code.py": "x"})
    git(source.parent, "init", "-q", "made")
    git(source.parent / "made", "add", ".")
    git(source.parent / "made", "commit", "-qm", "x")
    for name in ("proj", "other"):
        write(source.parent / "above" / name, **{"train.py": "x", "tokens.yaml": "x", "gone.py": "x", "kept.log": "x"})
    above = source.parent / "above"
    git(above, "init", "-q")
    git(above, "submodule", "--quiet", "add", str(source.parent / "made"), "proj/module")
    git(above, "add", ".")
    (above / "proj" / "gone.py").unlink()
    write(above / "proj", **{"module/more.py": "x", ".gitignore": "*.log\n"})
    monkeypatch.setenv("GIT_DIR", str(source.parent / "made" / ".git"))
    # kept.log is tracked; the repository ignores the other folder as a whole.
    files = {"train.py", "kept.log", ".gitignore", "module/code.py", "module/more.py"}
    assert packed(above / "proj") == files
    assert packed(above / "other") == {"train.py", "tokens.yaml", "gone.py", "kept.log"}


def test_the_same_files_give_the_same_bytes_and_programs_stay_executable(source):
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o700)
    path, _ = pack(source)
    first = path.read_bytes()
    with tarfile.open(path) as archive:
        modes = {entry.name: entry.mode for entry in archive.getmembers()}
    assert (modes["run.sh"], modes["train.py"]) == (0o755, 0o644)
    (source / "train.py").touch()
    assert pack(source)[0].read_bytes() == first
    (source / "train.py").write_text("print(2)")
    assert pack(source)[0].read_bytes() != first


@pytest.mark.parametrize("name", [".env", "sub/id_rsa", "server.pem", "credentials", ".netrc", ".env.local"])
def test_secrets_are_refused_by_name(source, name):
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_text("SECRET")
    with pytest.raises(LaunchError, match=rf"{name} in .* may hold secrets.*--allow-file {name}"):
        pack(source)
    assert name in pack(source, allowed=[name])[1]
    (source / ".gitignore").write_text(name.rpartition("/")[2])
    assert name not in pack(source)[1]


def test_large_files_are_refused_by_name(source):
    with (source / "weights.bin").open("wb") as file:
        file.truncate(101 * 1024 * 1024)
    with pytest.raises(LaunchError, match=r"weights\.bin \(105\.9 MB\).*channel"):
        pack(source)
    assert "weights.bin" in pack(source, allowed=["weights.bin"])[1]


def test_the_package_rides_along_unless_named(source):
    _, files = pack(source)
    assert files.keys() == {"train.py", WHEEL, "requirements.txt"}
    assert files["requirements.txt"] == f"./{WHEEL}\n".encode()
    ours = ("lightning-sm", "# ours:\nlightning_sm[s3]\ntorchmetrics", f"lightning-sm=={__version__}")
    others = ("# lightning-sm==9.9 once", "lightning-smart==1.0", "lightning-sm-extra==1.0", "my-lightning-sm==1.0")
    for text in (*ours, *others):
        (source / "requirements.txt").write_text(text)
        assert pack(source)[1]["requirements.txt"].decode() == f"{text}\n./{WHEEL}\n"
    for text in ("lightning-sm==9.9", "./lightning_sm-0.1.0-py3-none-any.whl", "lightning-sm @ git+https://x/y"):
        (source / "requirements.txt").write_text(text)
        assert WHEEL not in pack(source)[1]


def test_requirements_with_hashes_and_of_another_encoding(source):
    (source / "requirements.txt").write_text("# none\n#--hash=sha256:0\n")
    with tarfile.open(pack(source)[0]) as archive:
        archive.extractall(source.parent / "unpacked")
    words = ("install", "--dry-run", "--no-deps", "--require-hashes", "-r", "requirements.txt")
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=source.parent / "unpacked", check=True)
    (source / "requirements.txt").write_text("torchmetrics", encoding="utf-16")
    with pytest.raises(LaunchError, match=r"requirements\.txt is not UTF-8"):
        pack(source)


def test_links_of_the_source(source, tmp_path):
    with pytest.raises(LaunchError, match="is no folder"):
        pack_source(tmp_path / "none", tmp_path / "x.tar.gz")
    write(tmp_path / "shared", **{"common.py": "x = 1"})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "up").symlink_to(tmp_path)
    for target, packed in (("nothing", None), ("link", None), (tmp_path / "shared", b"x = 1")):
        (source / "link").symlink_to(target)
        found = pack(source)[1]
        assert (found.get("link/common.py"), "link" in found) == (packed, False)
        (source / "link").unlink()
    for target, name in ((source, "link"), (tmp_path / "outside", "link/up")):
        (source / "link").symlink_to(target)
        with pytest.raises(LaunchError, match=f"{name} is a link to a folder that is packed already"):
            pack(source)
        (source / "link").unlink()
