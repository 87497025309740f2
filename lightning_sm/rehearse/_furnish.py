"""What a namespaced host needs in its own ``/etc``, ``/root``, ``/run`` and ``/tmp`` to be a SageMaker container."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

from ._errors import RehearsalError

__all__ = ["furnish", "furnish_ssh", "make_key"]

# First value wins in sshd_config, so these go in front.
_SSHD = "PermitRootLogin yes\nPubkeyAuthentication yes\nStrictModes no\nUsePAM yes\nPrintMotd no\nUseDNS no\n"


def furnish(image: Path, host: str, hosts_file: str) -> None:
    """Names, and none of what this machine left lying about that the toolkits take for their own."""
    # The toolkit appends the container's variables to the third; those of this machine must not be in it.
    for name, content in (("hosts", hosts_file), ("hostname", f"{host}\n"), ("environment", "")):
        path = image / "etc" / name
        # Made anew: in a user namespace a file of the machine's root can be replaced, but not written to.
        if path.exists() or path.is_symlink():
            path.unlink()
        path.write_text(content, encoding="utf-8")
    for flag in [*image.glob("tmp/done.*"), *image.glob("tmp/ready.*")]:
        with contextlib.suppress(OSError):
            flag.unlink()


def make_key(folder: Path) -> None:
    """An ssh key without a password, for one rehearsal."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rehearsal", "-f", str(folder / "id_ed25519"))


def furnish_ssh(image: Path, keys: Path) -> None:
    """As the Dockerfiles of the training images do: a key for root, sshd ready to start on port 22."""
    home = image / "root" / ".ssh"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700, parents=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        shutil.copy2(keys / name, home / name)
    shutil.copy2(keys / "id_ed25519.pub", home / "authorized_keys")
    quiet = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    (home / "config").write_text(quiet, encoding="utf-8")
    (home / "config").chmod(0o600)
    config = image / "etc" / "ssh" / "sshd_config"
    config.write_text(_SSHD + config.read_text(encoding="utf-8"), encoding="utf-8")
    pam = image / "etc" / "pam.d" / "sshd"
    if pam.exists():
        # There is no login session to put the id on: the images make it optional too.
        text = re.sub(r"session\s+required\s+pam_loginuid.so", "session optional pam_loginuid.so", pam.read_text())
        pam.write_text(text)
    (image / "run" / "sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    _run("ssh-keygen", "-A", "-f", str(image))


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise RehearsalError(f"{command[0]} failed: {done.stdout.decode('utf-8', 'replace').strip()}")
