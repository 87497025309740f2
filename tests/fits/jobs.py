"""Jobs whose containers are lost and replaced, as spot instances are; the checkpoint directory survives."""

import json
import signal

from tools.faults import job

__all__ = ["KILLED", "TERMINATED", "Job", "same"]

KILLED, TERMINATED = -signal.SIGKILL, 128 + signal.SIGTERM


class Job(job.Job):
    """A job on one host.

    Args:
        server: A :class:`tools.faults.server.Server`.
        folder: For all that belongs to it.
        programs: What its entry point runs, one after the other: a program's name and its arguments, as one text.
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
        super().__init__(server, folder, "", 1, processes, {})
        self.module = "tests.fits.programs"
        self.programs = [program.split() for program in programs]
        self.name = name
        self.options = options or {}
        self.hyperparameters = hyperparameters or {}
        self.in_container = in_container
        self.variables = variables

    def saves(self):
        """The steps of each fit of which there is a save with its record, by the fit's :meth:`place`."""
        found = {}
        for path in self.checkpoints().glob("**/fit-*/step-*.json"):
            found.setdefault(self.place(path.parent), []).append(json.loads(path.read_text())["step"])
        return {place: sorted(steps) for place, steps in found.items()}

    def place(self, series):
        """A fit's number, as ``fit-0``, below what is left of its directory without the program's own folder."""
        return str(series.relative_to(self.checkpoints()).parent.parent / series.name)

    def run(self, die_at=None, by="kill", timeout=120):
        """Run the programs in a fresh container; one that fails ends the entry point.

        Args:
            die_at: The moment at which the program ends itself, as its :class:`~tests.fits.parts.Moments` or its
                :func:`~tests.fits.parts.at` names it.
            by: How: ``kill`` or ``term`` (SIGTERM).
            timeout: Seconds for each program.
        """
        self.dies = {} if die_at is None else {"DIE_AT": die_at, "DIE_BY": by}
        found = {place: steps[-1] for place, steps in self.saves().items()}
        for number, program in enumerate(self.programs):
            self.arguments = program
            if number == 0:
                self.start()
            else:
                self.launch()
            codes = self.wait(timeout)
            self.end()
            if set(codes) != {0}:
                break
        return Attempt(self, codes, found)

    def interrupted(self, *moments):
        """Run the programs in a container for each of these moments, at which they die, and then to their end."""
        for moment in moments:
            self.run(moment).died(KILLED)
        return self.run().ended()

    def fresh_container(self, name):
        environ = super().fresh_container(name)
        if not self.in_container:
            del environ["SAGEMAKER_BASE_DIR"]
        elif self.name is not None:
            environ["TRAINING_JOB_NAME"] = self.name
        environ.update(OPTIONS=json.dumps({"save_every": "1ms", **self.options}), TOLD=str(self.folder / "told.jsonl"))
        return {**environ, **{name: str(value) for name, value in self.variables.items()}, **self.dies}


class Attempt:
    """What one container has left.

    Args:
        job: The job.
        codes: The exit code of each process of the program that ran last, ``None`` for one that did not end.
        found: The newest step of which there was a save when the container started, by the place of the fit.
    """

    def __init__(self, job, codes, found):
        self.codes, self.found = codes, found
        self.log, self.model, self._told = job.output, job.files(), job.told()
        failure = job.model.parent / "output" / "failure"
        self.failure = failure.read_text() if failure.exists() else None
        # What the programs printed at their ends, a mapping for each.
        lines = [line[7:] for line in self.log.splitlines() if line.startswith("RESULT ")]
        self.results = [json.loads(line.replace(str(job.folder), "")) for line in lines]

    def ended(self):
        """This attempt, after a good end."""
        assert set(self.codes) == {0}, f"exit codes {self.codes}\n{self.log[-6000:]}"
        return self

    def died(self, code):
        """This attempt, after an end of the kind that was asked for."""
        assert code in self.codes, f"exit codes {self.codes}\n{self.log[-6000:]}"
        return self

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
