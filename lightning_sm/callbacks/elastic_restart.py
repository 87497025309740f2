"""``ElasticRestart``: ends a fit with a checkpoint when HyperPod's elastic agent is about to scale the job."""

from typing import Any, Callable, Optional, Sequence

from lightning_sm._failure import failure_reported
from lightning_sm._lightning.collectives import StepInterval
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm._sagemaker.elastic_agent import ElasticAgent
from lightning_sm._sagemaker.exit_codes import SUCCESS
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.callbacks.step_stop import StepStopMixin, StopReason

__all__ = ["ElasticRestartMixin"]


class ElasticRestartMixin(StepStopMixin):
    """Save a checkpoint and exit when ``hyperpodrun`` announces that the job is scaled or preempted.

    Before HyperPod's training operator starts an elastic job with another number of hosts, the agent of each host sends
    SIGUSR1 to its workers, which are to save a checkpoint and to exit with code 0 within the job's
    ``gracefulShutdownTimeoutInSeconds``. All ranks exit after the same optimizer step, or between two validation
    batches, also those whose agent has not sent the signal yet. The model is not exported and no failure is reported.
    To go on from the checkpoint, add :class:`AutoResume` with the same directory.

    ``elastic_event_detected()`` of the agent's package is called about four times a second, at the same steps on all
    ranks, because it reduces over all of them. The package is imported when this callback is made: the import installs
    the handler of SIGUSR1, without which the signal ends a process. Lightning installs one for SLURM jobs only.

    Without ``hyperpodrun``, and in a job without an elastic policy, this callback does nothing.

    The signal also reaches processes that a worker has started, as it is sent to the worker's process group. Workers of
    data loaders handle it if they are forked; those that are spawned are ended by it, and the fit fails.

    Files that are written:

    ``stopped-step=N.ckpt``
      The checkpoint after optimizer step N, in ``directory``; older ones are removed.

    Environment variables, all set by ``hyperpodrun``:

    ``HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH``, ``HYPERPOD_SIGNAL_COORDINATION``, ``JOB_RESTART_COUNT``
      See :class:`~lightning_sm._sagemaker.elastic_agent.ElasticAgent`.

    Args:
        directory: Where ``stopped-step=N.ckpt`` is saved, on storage that all hosts share. By default, the directory of
            the first ``ModelCheckpoint``; without one, no checkpoint is saved.

    Raises:
        JobConfigError: ``JOB_RESTART_COUNT`` is no count.

    Source: hyperpod-elastic-agent 1.1.3, ``elastic_event_handler.py``; "Using elastic training in Amazon SageMaker
    HyperPod" in the SageMaker Developer Guide
    (https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-eks-elastic-training.html).

    Example::

        >>> from lightning_sm.callbacks import AutoResume, ElasticRestart
        >>> callbacks = [ElasticRestart("/fsx/checkpoints"), AutoResume("/fsx/checkpoints")]
        >>> callbacks[0].directory
        '/fsx/checkpoints'
        >>> trainer = Trainer(callbacks=callbacks)  # doctest: +SKIP
    """

    def __init__(self, directory: Optional[str] = None) -> None:
        super().__init__(directory)
        with failure_reported(TrainingJob.resolve()):
            #: What the agent has said about itself; ``None`` without one.
            self.agent = ElasticAgent.resolve()
        self._is_event: Optional[Callable[[], bool]] = None
        if self.agent is not None and self.agent.has_events:
            self._is_event = _import_event_handler()
        self._interval = StepInterval()
        self._remaining = 1

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Hook into the training loop if there is an agent that announces events."""
        super().setup(trainer, pl_module, stage if self._is_event is not None else None)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """From here on, stop at the end of a step."""
        self._interval, self._remaining = StepInterval(), 1
        super().on_train_start(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Determine whether ranks may synchronize after each validation batch."""
        if self._is_event is not None:
            super().on_validation_start(trainer, pl_module)

    def _read_flags(self, trainer: Trainer) -> Sequence[bool]:
        return (self._is_event is not None and self._is_due(trainer) and self._is_event(),)

    def _is_due(self, trainer: Trainer) -> bool:
        if trainer.world_size > 1:
            return self._all_reduce.is_due
        self._remaining -= 1
        if self._remaining > 0:
            return False
        self._remaining = self._interval.next()
        return True

    def _reason(self, index: int) -> StopReason:
        return StopReason("The elastic agent announces another world size", SUCCESS, exports=False)


def _import_event_handler() -> Optional[Callable[[], bool]]:
    """Import ``elastic_event_detected``, which installs the handler of SIGUSR1; ``None`` if that is impossible."""
    try:
        from hyperpod_elastic_agent.elastic_event_handler import elastic_event_detected
    except ImportError as error:
        reason, hint = str(error), "Install hyperpod-elastic-agent for the Python that trains."
    except ValueError as error:  # signal.signal outside the main thread
        reason, hint = str(error), "Make this callback in the main thread."
    else:
        found: Callable[[], bool] = elastic_event_detected
        return found
    log.warning("Elastic events are not noticed, and SIGUSR1 ends this process: %s. HINT: %s", reason, hint)
    return None
