"""A job of the tests leaves no process behind, whatever its script does."""

import time

from tests.helpers.processes import Job, marked

_SCRIPT = """
import subprocess, sys, time
# As torchrun's workers and guards are, in a session of their own.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600 if sys.argv[2] == "hang" else 0)
sys.exit(sys.argv[2] == "fail")
"""


def ended(folder, how):
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    job = Job(folder / "job", script, how, timeout=1).plain()
    began = time.monotonic()
    while marked(job._mark):
        assert time.monotonic() < began + 5, "a process is left"
        time.sleep(0.02)
    return job.codes


def test_a_job_that_hangs(tmp_path):
    assert ended(tmp_path, "hang") == [None]


def test_a_job_that_fails(tmp_path):
    assert ended(tmp_path, "fail") == [1]
