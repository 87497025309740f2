"""What a ``CSVLogger`` has written: a program reads its file after ``fit``, and a restart writes into a new one."""

import csv
import io
import os
from typing import Any, Iterator, List, Optional

from lightning_sm._lightning.namespaces import has_base
from lightning_sm._lightning.results import MAX_STATE_BYTES
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log

__all__ = ["csv_files", "restore_csv_files"]


def csv_files(trainer: Trainer) -> List[Optional[str]]:
    """Return the contents of the file of each ``CSVLogger``, on global rank 0; ``None`` for one above 4 MiB."""
    found: List[Optional[str]] = []
    for writer in _writers(trainer):
        writer.save()
        path = writer.metrics_file_path
        if not os.path.isfile(path):
            found.append("")
        elif os.path.getsize(path) > MAX_STATE_BYTES:
            found.append(None)
        else:
            with open(path, newline="", encoding="utf-8") as file:
                found.append(file.read())
    return found


def restore_csv_files(trainer: Trainer, saved: List[Optional[str]]) -> None:
    """Let each ``CSVLogger`` go on with what :func:`csv_files` returned."""
    for writer, content in zip(_writers(trainer), saved):
        path = writer.metrics_file_path
        if content is None:
            log.warning("Not restored: what had been logged to %s, which was larger than 4 MiB.", path)
        elif content:
            with open(path, "w", newline="", encoding="utf-8") as file:
                file.write(content)
            # A name of a column may have several lines.
            writer.metrics, writer.metrics_keys = [], next(csv.reader(io.StringIO(content, newline="")))


def _writers(trainer: Any) -> Iterator[Any]:
    """Those of local files, but of Lightning before 2.1, which writes all rows again each time."""
    for logger in getattr(trainer, "loggers", ()) if trainer.is_global_zero else ():
        is_local = has_base(type(logger), "CSVLogger") and "://" not in str(logger.log_dir)
        if is_local and hasattr(logger.experiment, "metrics_keys"):
            yield logger.experiment
