"""``TieredCheckpoints``: frequent checkpoints in the memory of a HyperPod cluster."""

import os
import textwrap
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.candidates import Candidate, JobIdentity
from lightning_sm._checkpoint.integrity import META_FILE, weights_only_error
from lightning_sm._checkpoint.resume import Choice
from lightning_sm._checkpoint.shard_storages import MemoryTier
from lightning_sm._duration import read_duration
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce
from lightning_sm._lightning.compat import steps_taken
from lightning_sm._lightning.compat_sharded import dcp_storage
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.train_loop_hooks import after_batch_hooks
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import CheckpointError

__all__ = ["TieredCheckpointsMixin", "newer_in_memory"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

# A cluster without the service must not cost a timeout in each interval.
_MAX_FAILURES = 3


class TieredCheckpointsMixin(_Base):
    """Save to the memory of a HyperPod cluster, and resume from there where that is newer than the job's checkpoints.

    It uses SageMaker's managed tiered checkpointing, whose service keeps each rank's shards in the memory of several
    hosts, so that saves are frequent and a restart is quick. It comes beside the checkpoints of the job's checkpoint
    directory, which outlast the cluster: :class:`~lightning_sm.callbacks.AutoResume` takes the newer of the two. A
    restart with another number of processes resumes from the directory.

    A save that fails is a warning, and after three in a row there are no more: the training goes on.

    It reads no environment variable. The library writes its log to ``/var/log/sagemaker_checkpointing``.

    Args:
        namespace: Identifies the training in the cluster; the same in its restarts, and another for each training.
        interval: The time between two saves, such as ``1m``.

    Raises:
        CheckpointError: ``interval`` is not a duration, the package ``amzn-sagemaker-checkpointing`` is missing, or the
            strategy does not save sharded checkpoints (FSDP or FSDP2; in ``fit``).

    Source: the SageMaker developer guide, "HyperPod managed tiered checkpointing"; the package
    ``amzn-sagemaker-checkpointing``.

    Example::

        >>> from lightning_sm.callbacks import TieredCheckpoints
        >>> callback = TieredCheckpoints("my-model-1", interval="30s")
        >>> callback.namespace_of_training
        'my-model-1'
        >>> trainer = Trainer(strategy="smddp_fsdp2", callbacks=[callback])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self, namespace: str, interval: str = "1m") -> None:
        super().__init__()
        self._job = TrainingJob.resolve()
        self.namespace_of_training = namespace
        with failure_reported(self._job):
            self._interval = _seconds(interval)
        self._tier: Optional[MemoryTier] = None
        self._found: Optional[Candidate] = None
        self._undo: List[Callable[[], None]] = []
        self._saved_at = 0.0
        self._steps = 0
        self._failures = 0
        self._look = ThrottledAllReduce()

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Check that this can work, and replace the storage of the load."""
        if stage != "fit":
            return
        self._release()
        strategy = strategy_of(trainer)
        self._tier = MemoryTier(self.namespace_of_training, trainer.world_size)
        with failure_reported(self._job):
            self._tier.check(self.namespace, strategy)
        load = ReplacedMethod(strategy, "load_checkpoint", self._load)
        self._undo = [load.undo, after_batch_hooks(trainer, lambda: self._after_batch(trainer))]

    def _load(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._tier is None or self._found is None or str(path) != self._found.name:
            return original(path, *args, **kwargs)
        tier, found = self._tier, self._found
        with dcp_storage(self.namespace, reader=lambda: tier.reader(found.global_step)):
            return original(path, *args, **kwargs)

    def newest(self, trainer: Trainer) -> Optional[Candidate]:
        """Return the newest checkpoint in the cluster's memory. Collective: every rank must call it."""
        self._found = None if self._tier is None else self._tier.newest(trainer)
        return self._found

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Count the interval from now on."""
        self._saved_at, self._failures, self._look = time.monotonic(), 0, ThrottledAllReduce()
        self._steps = steps_taken(self.namespace, trainer)
        self._forget()

    def _after_batch(self, trainer: Trainer) -> None:
        """Save after an optimizer step, if the interval of global rank 0 has elapsed."""
        steps = steps_taken(self.namespace, trainer)
        if steps == self._steps or self._failures >= _MAX_FAILURES or self._tier is None:
            return
        self._steps = steps
        is_late = time.monotonic() - self._saved_at >= self._interval
        (is_due,) = self._look.any_true(trainer, [trainer.is_global_zero and is_late])
        if is_due:
            self._save(trainer, self._tier)

    def _save(self, trainer: Trainer, tier: MemoryTier) -> None:
        from torch.distributed.checkpoint.api import CheckpointException

        started = time.monotonic()
        try:
            tier.save(self.namespace, trainer)
        except (Exception, CheckpointException) as error:
            self._failures += 1
            if trainer.is_global_zero:
                log.warning(
                    "Step %d was not saved in the memory tier %s (%s)%s",
                    self._steps,
                    tier.name,
                    _reason(error),
                    "; there will be no further saves there." if self._failures == _MAX_FAILURES else "",
                )
        else:
            self._failures = 0
            if trainer.is_global_zero:
                log.info(
                    "Saved step %d in the memory tier %s (%.1f s)", self._steps, tier.name, time.monotonic() - started
                )
        self._saved_at = time.monotonic()

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore the strategy's methods."""
        if stage == "fit":
            self._release()

    def _forget(self) -> None:
        if self._found is not None:
            remove(os.path.dirname(self._found.name))
        self._found = None

    def _release(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []
        self._forget()


def newer_in_memory(trainer: Trainer, choice: Choice, job: JobIdentity, *, weights_only: bool) -> Choice:
    """Return the checkpoint in a cluster's memory, if it is this job's and newer than the choice; else the choice.

    Every rank must call it.

    Args:
        trainer: The trainer.
        choice: The checkpoint of the checkpoint directory.
        job: The identity of this job.
        weights_only: Whether to ignore one that does not load with ``weights_only=True``.
    """
    for callback in callbacks_of(trainer):
        found = callback.newest(trainer) if isinstance(callback, TieredCheckpointsMixin) else None
        if found is None or (choice.candidate is not None and found.global_step <= choice.candidate.global_step):
            continue
        error = weights_only_error(os.path.join(found.name, META_FILE))
        problem = None
        if found.job is None or not found.job.is_same_job(job):
            problem = f"it was written by {found.job}, and this is {job}"
        elif weights_only and error is not None:
            problem = f"it runs code when it is loaded ({error}), which sagemaker.resume_weights_only forbids"
        if problem is None:
            return replace(choice, candidate=found, weights_only_error=error, other_job=None)
        if trainer.is_global_zero:
            log.warning("Rejected step %d of the memory tier: %s", found.global_step, problem)
    return choice


def _reason(error: BaseException) -> str:
    """The error of the first rank that failed, of which DCP's own error shows the tracebacks of all."""
    failures = getattr(error, "failures", None)
    first = next(iter(failures.values()))[0] if failures else error
    return textwrap.shorten(f"{type(first).__name__}: {first}", 300, placeholder=" …")


def _seconds(interval: str) -> float:
    try:
        return read_duration(interval)
    except ValueError as error:
        raise CheckpointError(f"interval of TieredCheckpoints: {error}.", hint="Write 30s, 1m or 1.5h.") from error
