"""``choose``: all ranks of a fit agree on the save that it continues, and each host has it whole."""

from dataclasses import dataclass
from enum import Enum
from typing import List, Mapping, Optional, Tuple

from lightning_sm._lightning.collectives import broadcast, gather_objects
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity
from lightning_sm._resume.ranks import on_main_rank, raise_on_all_ranks
from lightning_sm._resume.record import CheckpointRecord, FitRecord
from lightning_sm._resume.series import Series, newest_first, other_series
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.transfers import LocalFiles, check_loadable
from lightning_sm.errors import CheckpointError

__all__ = ["Choice", "ResumeMode", "choose", "describe_world_change"]

_OTHER_JOB = (
    "Give each job a checkpoint_s3_uri of its own. To continue that training, set sagemaker.resume to always; to start "
    "a new one from its weights, pass the checkpoint as ckpt_path."
)
_OTHER_MODEL = (
    "A restarted program must make the same fits in the same order. Set sagemaker.resume to never, or "
    "sagemaker.checkpoint_dir to an empty directory, to train from scratch."
)


class ResumeMode(str, Enum):
    """The values of ``sagemaker.resume``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    REQUIRE = "require"

    @classmethod
    def parse(cls, value: object) -> "ResumeMode":
        """Return the member with this value.

        Raises:
            CheckpointError: There is none.
        """
        try:
            return cls(value)
        except ValueError as error:
            choices = ", ".join(mode.value for mode in cls)
            raise CheckpointError(f"sagemaker.resume is {value!r}.", hint=f"Choose one of {choices}.") from error


@dataclass(frozen=True)
class Choice:
    """What a fit continues.

    Args:
        series: Where the fit's own saves are.
        fit: What is known of the fit; ``None`` if it has never been trained.
        record: The newest whole save; ``None`` if there is none.
        source: The directory or URL of that save, which may be another job's.
        newest: The largest number of a save, of those that are not whole, too.
    """

    series: Series
    fit: Optional[FitRecord] = None
    record: Optional[CheckpointRecord] = None
    source: str = ""
    newest: int = 0


def choose(
    trainer: Trainer, series: Series, job: ProgramIdentity, model: ModelIdentity, mode: ResumeMode, files: LocalFiles
) -> Choice:
    """Choose the newest save of a fit that is whole. Every rank must call it.

    Args:
        trainer: The trainer, whose process group exists.
        series: Where the fit's saves are.
        job: The program that trains.
        model: What it trains.
        mode: Whether saves may or must be used.
        files: Gives the files of a save to this host.

    Raises:
        CheckpointError: The saves are another job's or another model's, the strategy cannot load the newest one, or a
            host or storage cannot be read; on all ranks.
    """
    if mode is ResumeMode.AUTO:
        _check_job(trainer, series, job)
    found = [series]
    if mode in (ResumeMode.ALWAYS, ResumeMode.REQUIRE):
        others = on_main_rank(trainer, series.root, lambda: _others_of(series))
        found += [Series(series.root, name, series.number) for name in others]
    own = Choice(series)
    for each in found:
        records, fit = _read_all(trainer, each)
        if each is series:
            own = Choice(series, fit, newest=max((record.number for record in records), default=0))
        if mode is ResumeMode.NEVER:
            if records and trainer.is_global_zero:
                log.warning("The checkpoints in %s are not used: sagemaker.resume is never", each.directory)
            return Choice(series, newest=own.newest)
        for record in records:
            _check_model(trainer, each, record, model)
            problem = files.obtain(trainer, each.directory, record.files)
            if problem is None:
                check_loadable(trainer, record, str(record))
                return Choice(series, fit, record, each.directory, own.newest)
            if trainer.is_global_zero:
                log.warning("Skipped %s in %s: %s", record.name, each.directory, problem)
    return own


def _read_all(trainer: Trainer, series: Series) -> Tuple[List[CheckpointRecord], Optional[FitRecord]]:
    """The records that any host has, newest first, and that of the fit."""
    reads = trainer.is_global_zero or (trainer.local_rank == 0 and not is_remote(series.root))

    def read() -> Tuple[List[CheckpointRecord], Optional[FitRecord]]:
        return (series.records(), series.fit()) if reads else ([], None)

    parts = gather_objects(trainer, raise_on_all_ranks(trainer, series.directory, read))
    records = {(record.name, record.save_id): record for of_host, _ in parts for record in of_host}
    fits = [fit for _, fit in parts if fit is not None]
    # One host may have received the record of an earlier moment only.
    return newest_first(records.values()), next((fit for fit in fits if fit.ended), fits[0] if fits else None)


def _others_of(series: Series) -> List[str]:
    """The other series of the directory with this fit, the one saved last first."""
    times = {}
    for name in other_series(series.root, series.program):
        records = Series(series.root, name, series.number).records()
        if records:
            times[name] = records[0].time
    return sorted(times, key=lambda name: -times[name])


def _check_job(trainer: Trainer, series: Series, job: ProgramIdentity) -> None:
    def find() -> Optional[str]:
        found = {}
        for name in (series.program, *other_series(series.root, series.program)):
            first = Series(series.root, name, 0)
            saved = first.fit() or next(iter(first.records()), None)
            if saved is None:
                continue
            other = found[name] = ProgramIdentity.from_json(saved.job)
            if not job.is_same_job(other):
                names = _differing(job, other)
                more = f"; they differ in {names}" if names else ""
                return f"{first.directory} was written by {other}, and this is {job}{more}"
        if series.number == 0 and series.program not in found:
            _tell_other_settings(series, job, found)
        return None

    problem = on_main_rank(trainer, series.root, find)
    if problem is not None:
        raise CheckpointError(f"{problem}.", hint=_OTHER_JOB)


def _differing(job: ProgramIdentity, other: ProgramIdentity) -> str:
    return ", ".join(job.differences(other)[:8])


def _tell_other_settings(series: Series, job: ProgramIdentity, found: Mapping[str, ProgramIdentity]) -> None:
    """Say that a program trains from scratch beside its saves with other settings, as a default may be random."""
    same = {name: each for name, each in found.items() if each.program == job.program}
    if not same:
        return
    name, closest = min(same.items(), key=lambda item: len(job.differences(item[1])))
    log.info(
        "%s/%s has saves of this program with other settings, which are not used: they differ in %s. HINT: If it is "
        "the same training, give these settings values that are the same at each start.",
        series.root,
        name,
        _differing(job, closest),
    )


def _check_model(trainer: Trainer, series: Series, record: CheckpointRecord, model: ModelIdentity) -> None:
    problem = broadcast(trainer, model.problem(record.model))
    if problem is not None:
        problem = f"Fit {series.number} of this program cannot continue from {series.path(record.name)}: {problem}."
        raise CheckpointError(problem, hint=_OTHER_MODEL)
    texts = model.differing_texts(record.model)
    if texts and trainer.is_global_zero:
        log.warning("%s was saved with another %s; it is continued", record.name, ", ".join(texts))


def describe_world_change(record: CheckpointRecord, world_size: int) -> Optional[str]:
    """Return a log line that says what changes with another world size; ``None`` if it is the same.

    Args:
        record: The save that is continued.
        world_size: The number of processes now.
    """
    if record.world_size == world_size:
        return None
    how = "Its shards are distributed anew. " if record.strategy else ""
    return (
        f"{record.name} was saved by {record.world_size} processes, and this job has {world_size}. {how}What "
        f"differs from the earlier run: an interrupted epoch starts again with its samples in another order, and with "
        f"the same batch size per process each step takes {world_size}/{record.world_size} of the samples, so the "
        "learning rate, which follows the steps, changes after another number of samples. HINT: Adjust the batch size "
        "or accumulate_grad_batches to keep the global batch size."
    )
