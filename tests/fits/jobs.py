"""Jobs whose containers are lost and replaced, as spot instances are; the checkpoint directory survives."""

import hashlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

from lightning_sm._export import load_file
from tests.helpers.environ import torchrun, without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT, free_port

__all__ = ["KILLED", "TERMINATED", "Job", "same"]

KILLED, TERMINATED = -signal.SIGKILL, 128 + signal.SIGTERM
_PROGRAMS = "tests.fits.programs"


class Job:
    """A job on one host.

    Args:
        server: A :class:`tools.faults.server.Server`.
        folder: For all that belongs to it.
        programs: What its entry point runs, one after the other: the module's name and its arguments, as one text each.
        name: Its name; ``None`` where nothing tells it.
        processes: How many there are of each program; several get their ranks as from torchrun.
        options: The group ``sagemaker``, beside ``save_every``.
        hyperparameters: For programs that read them.
        in_container: Whether there are files of SageMaker's.
        variables: For all programs.
    """

    def __init__(
        self,
        server,
        folder,
        *programs,
        name="job-1",
        processes=1,
        options=None,
        hyperparameters=None,
        in_container=True,
        **variables,
    ):
        self.server = server
        self.folder = Path(folder)
        self.programs = [program.split() for program in programs]
        self.name = name
        self.processes = processes
        self.options = options or {}
        self.hyperparameters = hyperparameters or {}
        self.in_container = in_container
        self.variables = variables
        self.attempts = 0
        self.base = self.folder / "opt-ml"
        self.checkpoints = self.base / "checkpoints"
        self.checkpoints.mkdir(parents=True)

    def saves(self):
        """The steps of each fit of which there is a save with its record, by the fit's :meth:`place`."""
        found = {}
        for path in self.checkpoints.glob("**/fit-*/step-*.json"):
            found.setdefault(self.place(path.parent), []).append(json.loads(path.read_text())["step"])
        return {place: sorted(steps) for place, steps in found.items()}

    def place(self, series):
        """A fit's number, as ``fit-0``, below what is left of its directory without the program's own folder."""
        return str(series.relative_to(self.checkpoints).parent.parent / series.name)

    def run(self, die_at=None, by="kill", timeout=120):
        """Run the programs in a fresh container.

        Args:
            die_at: The moment at which the program ends itself, as its :class:`~tests.fits.programs.parts.Moments` or
                its :func:`~tests.fits.programs.parts.at` names it.
            by: How: ``kill`` or ``term`` (SIGTERM).
            timeout: Seconds for all of it.
        """
        self._fresh_container(die_at, by)
        self._start(0)
        return self._wait(timeout)

    def interrupted(self, *moments):
        """Run the programs in a container for each of these moments, at which they die, and then to their end."""
        for moment in moments:
            self.run(moment).died(KILLED)
        return self.run().ended()

    def _fresh_container(self, die_at, by):
        self.attempts += 1
        self.found = {place: steps[-1] for place, steps in self.saves().items()}
        for gone in ("input", "output", "model"):
            shutil.rmtree(self.base / gone, ignore_errors=True)
        for fresh in ("output", "model"):
            # What writes the failure of a process that was killed may still run.
            (self.base / fresh).mkdir(exist_ok=True)
        self._environ = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if self.in_container:
            opt_ml = OptMl(self.base).host("algo-1", current_instance_type="local")
            self._environ.update(opt_ml.hyperparameters(**self.hyperparameters).environ(SM_NUM_GPUS=0))
            if self.name is not None:
                self._environ["TRAINING_JOB_NAME"] = self.name
        self._environ.update(OPTIONS=json.dumps({"save_every": "1ms", **self.options}), TOLD=str(self._told))
        self._environ.update({name: str(value) for name, value in self.variables.items()})
        if die_at is not None:
            self._environ.update(DIE_AT=die_at, DIE_BY=by)

    def _start(self, number):
        self._number = number
        program, *arguments = self.programs[number]
        port = free_port()
        self.running = []
        for rank in range(self.processes):
            environ = dict(self._environ)
            if self.processes > 1:
                environ.update(torchrun(rank, self.processes, rank, self.processes, 0, MASTER_PORT=port))
                environ["MASTER_ADDR"] = "127.0.0.1"
            self.running.append(
                self.server.start(
                    program if "." in program else f"{_PROGRAMS}.{program}",
                    arguments,
                    environ=environ,
                    folder=self.base,
                    log=self._log,
                    code=self.folder / f"code-{self.attempts}-{number}-{rank}",
                )
            )

    @property
    def _log(self):
        return self.folder / f"log-{self.attempts}.txt"

    @property
    def _told(self):
        return self.folder / f"told-{self.attempts}.jsonl"

    def _wait(self, timeout):
        """Wait for the programs; one that fails ends the entry point, and of several processes the others."""
        deadline = time.monotonic() + timeout
        told = False
        while time.monotonic() < deadline:
            codes = [process.poll() for process in self.running]
            if None not in codes:
                if any(codes) or self._number + 1 == len(self.programs):
                    break
                self._start(self._number + 1)
            elif any(codes) and not told:
                told = True
                self._signal(signal.SIGTERM)
            time.sleep(0.01)
        self._signal(signal.SIGKILL)
        return Attempt(self, codes)

    def _signal(self, number):
        for process in self.running:
            process.signal(number)


class Attempt:
    """What one container has left.

    Args:
        job: The job.
        codes: The exit code of each process of the program that ran last, ``None`` for one that did not end.

    Attributes:
        found: The newest step of which there was a save when the container started, by the place of the fit.
    """

    def __init__(self, job, codes):
        self.codes = codes
        self.log = job._log.read_text(errors="replace")
        self.found = job.found
        self._base = job.base
        self._told = []
        if job._told.exists():
            self._told = [json.loads(line) for line in job._told.read_text().splitlines()]
        failure = job.base / "output" / "failure"
        self.failure = failure.read_text() if failure.exists() else None
        # Each file of the model directory with what can be compared.
        folder, base = job.base / "model", str(job.base)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        self.model = {str(path.relative_to(folder)): _content(path, base) for path in files}

    def ended(self):
        """This attempt, after a good end."""
        assert set(self.codes) == {0}, f"exit codes {self.codes}\n{self.log[-6000:]}"
        return self

    def died(self, code):
        """This attempt, after an end of the kind that was asked for."""
        assert code in self.codes, f"exit codes {self.codes}\n{self.log[-6000:]}"
        return self

    @property
    def results(self):
        """What the programs printed at their ends, a mapping for each."""
        lines = [line[7:] for line in self.log.splitlines() if line.startswith("RESULT ")]
        return [json.loads(line.replace(str(self._base), "")) for line in lines]

    @property
    def result(self):
        """What the last program printed at its end."""
        return self.results[-1]

    @property
    def summary(self):
        """The content of ``model.json``."""
        return self.model["model.json"]

    def steps(self, fit):
        """The counts of steps with which the batches of a fit began, in their order."""
        return [told["step"] for told in self._told if told["fit"] == fit and "step" in told]

    def hooks(self, fit):
        """The hooks at a fit's start and end that were called, in their order."""
        return [told["hook"] for told in self._told if told["fit"] == fit and "hook" in told]


def same(attempt, whole):
    """Assert that a job ended as one that was not interrupted: what its programs read and what it exported."""
    attempt.ended()
    assert attempt.results == whole.results
    assert attempt.model == whole.model


def _content(path, base):
    if path.suffix == ".pt":
        state = load_file(str(path), weights_only=True)
        # pickles of equal tensors may differ
        return {
            name: hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:16]
            for name, value in state.items()
        }
    if path.suffix == ".json":
        # What lies there decides whether ModelCheckpoint appends a version to a name.
        return json.loads(re.sub(r"-v\d+(?=\.ckpt)", "", path.read_text().replace(base, "")))
    return path.read_text().replace(base, "")
