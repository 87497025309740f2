"""``TensorBoardUpload``: uploads TensorBoard files while training goes on."""

from typing import Any, Dict, List, Mapping, Optional, Union

from lightning_sm._duration import duration_of_option
from lightning_sm._lightning import has_base
from lightning_sm._lightning.trainer import Callback, Trainer
from lightning_sm._observe.upload import DirectoryUpload, check_packages

__all__ = ["TensorBoardUploadMixin"]


class TensorBoardUploadMixin(Callback):
    """Upload the files of local log directories to remote storage while training goes on.

    In a job :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add it where a
    ``TensorBoardLogger`` has a remote ``save_dir``, and give that logger a local directory. The logger alone would
    upload the whole event file at each of its flushes from the thread that it writes with, and a failed upload would
    end the training.

    A thread of global rank 0 uploads the files that have changed, each as a whole, because S3 has no append. It pauses
    at least nine times as long as the upload took, so that large files are uploaded less often. Failed uploads are
    retried; one warning says that they fail, and one at the end what was not uploaded. The end of ``fit``, also of one
    that fails or is stopped, waits up to 30 s for the last upload. A process that is killed loses one interval.

    Files: those below the directories are read. Environment variables: for ``s3://``, those of boto3, such as
    ``AWS_ENDPOINT_URL`` and ``AWS_DEFAULT_REGION``; in a job its role gives the credentials.

    Args:
        targets: The URL that each local directory is uploaded to, such as ``{"runs": "s3://bucket/runs"}``.
            ``s3://`` needs boto3; other URLs need the package that fsspec uses for them.
        interval: The time between two uploads, such as ``30s``.

    Raises:
        OptionError: ``interval`` is not a duration.
        LoggerError: A package that the upload needs is missing.

    Source: ``GFile`` in ``tensorboard/compat/tensorflow_stub/io/gfile.py`` uploads at each flush, and
    ``_AsyncWriter`` in ``tensorboard/summary/writer/event_file_writer.py`` raises what failed in its thread.

    Example::

        >>> from lightning_sm.callbacks import TensorBoardUpload
        >>> callback = TensorBoardUpload({"runs": "memory://runs"}, interval="10s")
        >>> callback.targets
        {'runs': 'memory://runs'}
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, targets: Mapping[str, str], interval: Union[str, float] = "30s") -> None:
        super().__init__()
        self.targets = dict(targets)
        self.interval = interval
        self._seconds = duration_of_option("upload_every", interval)
        for url in self.targets.values():
            check_packages(url)
        self._loggers: List[Any] = []
        self._upload: Optional[DirectoryUpload] = None

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Start to upload, on global rank 0."""
        if not trainer.is_global_zero or not self.targets:
            return
        self._loggers = list(trainer.loggers)
        if self._upload is None:
            self._upload = DirectoryUpload(self.targets, self._seconds, self._flush)
        self._upload.start()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Upload what was logged up to the failure or the stop."""
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Upload what was logged up to the end."""
        self._stop()

    def __getstate__(self) -> Dict[str, Any]:
        # Copies, and processes that Lightning spawns with the trainer, have a thread of their own or none.
        return {**self.__dict__, "_upload": None, "_loggers": []}

    def _stop(self) -> None:
        if self._upload is not None:
            self._upload.stop()

    def _flush(self) -> None:
        """Let the loggers' writers write to their files what is in their queues, which they do every 2 minutes."""
        for logger in self._loggers:
            # The property ``experiment`` would make a writer where nothing has been logged.
            flush = getattr(getattr(logger, "_experiment", None), "flush", None)
            if callable(flush) and has_base(type(logger), "TensorBoardLogger"):
                flush()
