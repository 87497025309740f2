import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from lightning_sm import __main__ as entry
from lightning_sm._sagemaker.entrypoint import main, make_entrypoint

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="a container is Linux: the script reads /proc"
)

# Says that it listens, and what it hears.
CATCH = """
import signal, sys, time
def heard(*_):
    print(NAME, "heard", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, heard)
print(NAME, "listens", flush=True)
time.sleep(60)
"""
# The toolkit: starts another program as its child and ends with 1 where that fails.
TRAIN = """
import subprocess, sys
sys.exit(1 if subprocess.call([sys.executable, "user.py"]) else 0)
"""
# A launcher that nobody should stop: its only process has the variables of a rank.
LAUNCHER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: print("launcher heard", flush=True))
variables = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
sys.exit(subprocess.call([sys.executable, "rank.py"], env=variables))
"""
# As a rank with a worker of a data loader, which has its variables and a handler, too.
RANK = r"""
import os, signal, time
name = b"rank" if os.fork() else b"worker"
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, name + b" heard\n"), os._exit(7)))
os.write(1, name + b" listens\n")
time.sleep(60)
"""


class Box:
    """A folder of programs in which an entry point is started."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "output").mkdir()
        self.program("train", TRAIN)
        self.python("user", CATCH)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}" if not text.startswith("#!") else text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return self

    def python(self, name, text):
        (self.folder / f"{name}.py").write_text(text.replace("NAME", repr(name)))
        return self

    def run(self, *command, until=(), path=None):
        """Start the entry point around a command; stop it when the log has all of the lines; return code and log."""
        made = make_entrypoint(command) if command else make_entrypoint()
        log = self.folder / "log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [*made.entrypoint, *made.arguments],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PATH": f"{self.folder}:{path or os.environ['PATH']}",
                    "SAGEMAKER_BASE_DIR": str(self.folder),
                },
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + 30
            while until and not all(line in log.read_text() for line in until):
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            if until:
                process.send_signal(signal.SIGTERM)
            return process.wait(30), log.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


@pytest.mark.parametrize(
    ("code", "has_reason", "expected"), [(0, False, 0), (1, False, 1), (3, False, 3), (0, True, 1), (3, True, 3)]
)
def test_it_ends_as_its_command_ends_and_success_beside_a_failure_reason_is_none(box, code, has_reason, expected):
    if has_reason:
        (box.folder / "output" / "failure").write_text("ValueError: no such column")
    assert box.program("train", f"raise SystemExit({code})").run() == (expected, "")


@pytest.mark.parametrize("between", ["/bin/sh -c './run.sh; exit $?'", f"{sys.executable} start.py"])
def test_below_a_shell_or_a_program_that_would_die_of_it(box, between):
    box.program("train", f"import shlex, subprocess, sys; sys.exit(subprocess.call(shlex.split({between!r})))")
    box.program("run.sh", f"#!/bin/sh\n{sys.executable} user.py\n").python("start", TRAIN)
    code, log = box.run(until=["user listens"])
    assert code == 143
    assert "user heard" in log


def test_ranks_hear_it_and_neither_their_launcher_nor_their_workers(box):
    """Where there are bash and coreutils only: images without grep, awk, sed and ps exist."""
    tools = box.folder / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "sleep", "readlink"):
        (tools / name).symlink_to(shutil.which(name))
    box.python("user", LAUNCHER).python("rank", RANK)
    code, log = box.run(until=["rank listens", "worker listens"], path=tools)
    assert code == 143
    assert log.count("heard") == 1
    assert "rank heard" in log
    assert "not found" not in log


def test_ranks_of_somebody_else_hear_nothing(box):
    """As there are where this runs beside another job, in a container or out of one."""
    variables = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    box.python("other", CATCH)
    other = subprocess.Popen([sys.executable, "other.py"], cwd=box.folder, env=variables, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"other listens\n"
        assert box.run(until=["user listens"])[0] == 143
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize(
    "child", ["", "import os, signal; os.fork() or signal.signal(signal.SIGTERM, signal.SIG_IGN); "]
)
def test_a_program_that_does_not_listen_ends_all_the_same(box, child):
    # A tracker of multiprocessing ignores it, and ends with its program.
    box.python("user", f"{child}import time; print('deaf', flush=True); time.sleep(60)")
    began = time.monotonic()
    assert box.run(until=["deaf"])[0] == 143
    assert time.monotonic() - began < 30


def test_a_job_that_was_complete_when_it_was_stopped(box):
    box.python("user", CATCH.replace("exit(7)", "exit(0)"))
    assert box.run(until=["user listens"])[0] == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("user", "until", "code", "least"),
    [
        (CATCH, ["user listens"], 143, 5),
        # As on an mpirun job's worker host when the leader has failed.
        ("import time; open('output/failure', 'w').close(); time.sleep(4)", [], 137, 8),
    ],
)
def test_a_toolkit_that_waits_for_other_hosts_is_not_waited_for(box, user, until, code, least):
    box.program("train", TRAIN.replace("sys.exit(", "code = (") + "import time; time.sleep(60)")
    box.python("user", user)
    began = time.monotonic()
    assert box.run(until=until)[0] == code
    assert least < time.monotonic() - began < 30


def test_a_program_in_the_place_of_the_toolkit(box):
    box.python("parent", "import subprocess, sys; subprocess.Popen([sys.executable, 'user.py'])\n" + CATCH)
    code, log = box.run(sys.executable, "parent.py", until=["user listens", "parent listens"])
    assert code == 143
    assert "parent heard" in log
    assert "user heard" not in log


def test_the_command(capsys):
    assert entry.main(["entrypoint"]) == 0
    assert json.loads(capsys.readouterr().out) == make_entrypoint().as_request()
    main(["--format", "estimator"])
    assert json.loads(capsys.readouterr().out) == make_entrypoint().as_estimator()
    main(["--dlc", "--format", "script"])
    assert "bash -m start_with_right_hostname.sh train &" in capsys.readouterr().out.splitlines()
    main(["--format", "script", "--", "sh", "-c", "a b"])
    assert "sh -c 'a b' &" in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit):
        main(["--dlc", "train"])
    assert "exclude each other" in capsys.readouterr().err
