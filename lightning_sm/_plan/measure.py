"""Measures a step and counts the parameters of a project, which stays as it is, in a process of its own.

:func:`measure` starts the project's own command. There, ``lightning_sm_entry`` calls :func:`measure_first_fit` when
Lightning constructs a ``Trainer``, by the entry points that Lightning asks for callbacks. The first ``fit`` then runs
without the project's loggers and checkpoints, and ends the process after some steps.

Environment variables:

``LIGHTNING_SM_MEASURE``
  The file to write the measurement to. Set by :func:`measure`.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from statistics import median
from typing import Any, Callable, List, Optional, Sequence, Tuple

from lightning_sm._lightning import NAMESPACES, Namespace, has_base
from lightning_sm._lightning.wrapped_method import trainer_of, wrap_method
from lightning_sm._plan.model import Workload
from lightning_sm.errors import HyperparameterError

__all__ = ["measure", "measure_first_fit"]

_VARIABLE = "LIGHTNING_SM_MEASURE"
# Steps that are not measured; steps of a period, and the seconds in which it has fewer; periods; all seconds.
_WARM_UP, _PERIOD, _PERIOD_SECONDS, _PERIODS, _SECONDS = 10, 5, 2.0, 8, 60.0
# What writes files of its own, by the names of classes and packages.
_WRITERS = ("Checkpoint", "ModelCheckpoint", "SaveConfigCallback")


def measure(program: Sequence[str]) -> Tuple[Workload, str]:
    """Run a program until its first ``fit`` has been measured; returns that, and the processes and their device.

    The program runs where this process runs, with all its output on stderr. Loggers and callbacks that save are left
    out, ``default_root_dir`` is temporary, and nothing behind ``fit`` is run.

    Args:
        program: A script and its arguments, a subcommand of LightningCLI (``fit``) and what follows, or any command.

    Raises:
        HyperparameterError: It ended before some steps were measured, or spawns processes.
    """
    first = program[0]
    if first.endswith(".py"):
        command = [sys.executable, *program]
    elif first == "fit":
        command = [sys.executable, "-m", "lightning_sm.cli", *program]
    else:
        command = list(program)
    with tempfile.TemporaryDirectory() as directory:
        result = os.path.join(directory, "measurement.json")
        more = {_VARIABLE: result, "PYTHONDONTWRITEBYTECODE": "1", "WANDB_MODE": "disabled"}
        try:
            ended = f"exit code {subprocess.run(command, env={**os.environ, **more}, stdout=2, check=False).returncode}"
        except OSError as error:
            ended = str(error)
        if os.path.exists(result):
            with open(result) as file:
                found = json.load(file)
            if found is None:
                raise HyperparameterError(
                    f"`{' '.join(program)}` spawns or forks its processes (ddp_spawn, ddp_fork), in which "
                    "no step can be measured.",
                    hint="Let it train with strategy ddp, whose steps take the same.",
                )
            return Workload(**found[0]), found[1]
    raise HyperparameterError(
        f"`{' '.join(program)}` ended before a step was measured: {ended}.",
        hint="It must call Trainer.fit of Lightning 2, with at least two batches in an epoch; its output stands above.",
    )


def measure_first_fit(name: str) -> None:
    """Let the first ``fit`` of this program measure itself.

    Args:
        name: The package whose ``Trainer`` or ``Fabric`` is constructed, such as ``lightning.pytorch``.
    """
    if Namespace(name) in NAMESPACES:
        wrap_method(trainer_of(Namespace(name)), "fit", _fit)


def _fit(fit: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    namespace = next(each for each in NAMESPACES if each.owns(type(trainer)))
    result = os.environ[_VARIABLE]
    if has_base(type(trainer.strategy.launcher), "_MultiProcessingLauncher"):
        with open(result, "w") as file:
            json.dump(None, file)
        raise SystemExit(0)
    trainer._default_root_dir = os.path.dirname(result)
    trainer.loggers = [_no_logger(namespace, os.path.dirname(result))]
    trainer.num_sanity_val_steps = 0
    base: Any = namespace.module("callbacks").Callback
    watch = type("MeasureSteps", (_MeasureSteps, base), {})(result)
    trainer.callbacks = [*(each for each in trainer.callbacks if not _is_writer(each)), watch]
    return fit(trainer, *args, **kwargs)


def _is_writer(callback: Any) -> bool:
    is_ours = any(each.__module__.startswith("lightning_sm.") for each in type(callback).__mro__)
    return is_ours or has_base(type(callback), *_WRITERS)


def _no_logger(namespace: Namespace, directory: str) -> Any:
    """A logger that writes nothing: without any, some callbacks refuse to run."""
    base: Any = namespace.module("loggers.logger").DummyLogger
    return type("NoLogger", (base,), {"save_dir": property(lambda self: directory)})()


class _MeasureSteps:
    """The callback that measures: the time between the ends of batches, without validations.

    A GPU works on while Python is ahead, so it is waited for at the end of each period only.

    Args:
        result: The file to write to.
    """

    def __init__(self, result: str) -> None:
        self._result = result
        self._began: Optional[float] = None
        # The end of the last period, the batches that one has, those since then, all batches, and the batches and
        # seconds a step so far.
        self._last: Optional[float] = None
        self._length = 1
        self._count = self._seen = 0
        self._periods: List[Tuple[int, float]] = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Begin a period with the end of the next batch."""
        self._last = None

    on_validation_start = on_train_epoch_start

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        """End a period, and the training after enough of them."""
        self._count += 1
        self._seen += 1
        if self._last is not None and self._count < self._length:
            return
        if module.device.type == "cuda":
            _cuda().synchronize(module.device)
        now = time.perf_counter()
        self._began = self._began or now
        if self._last is not None:
            self._periods.append((self._seen, (now - self._last) / self._count))
            is_enough = len(self._measured()) >= _PERIODS or now - self._began > _SECONDS
            # The batches from the first one to the next validation, or to the end of the epoch.
            most = min(trainer.num_training_batches, trainer.val_check_batch or math.inf) - 1
            length = int(max(1, min(_PERIOD, most, _PERIOD_SECONDS / self._periods[-1][1])))
            # The first process decides: one that ended a batch before the others left them without its gradients.
            is_enough, self._length = trainer.strategy.broadcast((is_enough, length))
            if is_enough:
                self._end(trainer, module)
        self._last, self._count = time.perf_counter(), 0

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Take what there is of a training that ends earlier."""
        if self._periods:
            self._end(trainer, module)

    def _measured(self) -> List[float]:
        return [seconds for seen, seconds in self._periods if seen > _WARM_UP]

    def _end(self, trainer: Any, module: Any) -> None:
        if trainer.is_global_zero:
            # A lazy layer that no step has reached has no size, and no gradients.
            is_lazy = sys.modules["torch"].nn.parameter.is_lazy
            trained = [each for each in module.parameters() if each.requires_grad and not is_lazy(each)]
            parameters = sum(each.numel() for each in trained)
            size = sum(each.numel() * each.element_size() for each in trained)
            workload = Workload(
                parameters,
                median(self._measured() or [seconds for _, seconds in self._periods]),
                round(size / max(1, parameters)),
                trainer.accumulate_grad_batches,
            )
            device = module.device.type
            name = _cuda().get_device_name(module.device) if device == "cuda" else device
            where = f"{trainer.world_size} process{'es' * (trainer.world_size > 1)} on {name}"
            with open(self._result, "w") as file:
                json.dump([asdict(workload), where], file)
        raise SystemExit(0)


def _cuda() -> Any:
    return sys.modules["torch"].cuda
