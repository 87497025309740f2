"""A program in a container of its own, which can run again and again."""

import subprocess
import sys
import time

from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import environ_of

__all__ = ["Program"]


class Program:
    """A command of Python, with its checkpoints as SageMaker keeps them. The folder is named like the job."""

    def __init__(self, folder, *command, hyperparameters=None, **variables):
        self.folder, self.command, self.cwd = folder, command, folder
        opt_ml = OptMl(folder).host("algo-1").hyperparameters(**(hyperparameters or {}))
        opt_ml.write("checkpointconfig.json", {"S3Uri": "s3://b/c", "LocalPath": str(folder / "checkpoints")})
        job = opt_ml.environ(SM_NUM_GPUS=0, TRAINING_JOB_NAME=folder.name)
        self.environ = environ_of(**job, **variables)

    def start(self, *words, launcher=(), **variables):
        with open(self.folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, *map(str, self.command), *words],
                env={name: str(value) for name, value in {**self.environ, **variables}.items()},
                cwd=self.cwd,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def wait(self, seconds=120):
        try:
            self.code = self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
        return self

    def run(self, *words, **options):
        return self.start(*words, **options).wait()

    @property
    def output(self):
        return (self.folder / "log.txt").read_text(errors="replace")

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output[-3000:]
            assert time.monotonic() < deadline, self.output[-3000:]
            time.sleep(0.05)
