"""Checkpoints that a restarted job may resume from: which files they are, which job wrote them, what they contain.

``JobIdentity`` tells whether two jobs are the same; a ``Candidate`` describes a checkpoint without loading it.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._checkpoint.folders import ShardedFolder, unlisted_digest, upload_problem
from lightning_sm._checkpoint.integrity import CorruptedError, directory_size, read_contents, verify_and_hash
from lightning_sm._sagemaker.job import TrainingJob

__all__ = [
    "FINAL_WEIGHTS",
    "JOB_KEY",
    "REPLACED_WEIGHTS_KEY",
    "Candidate",
    "JobIdentity",
    "find_checkpoints",
    "is_discoverable",
    "list_candidates",
    "newest_of_job",
    "read_candidate",
    "sort_by_job",
    "sorted_candidates",
]

#: Key of the :class:`JobIdentity` in a checkpoint.
JOB_KEY = "lightning_sm_job"
#: Name of the checkpoint with the weights after ``on_train_end``, if callbacks change them there. For export only.
FINAL_WEIGHTS = "final-weights.ckpt"
#: Key that marks a checkpoint saved while a validation had replaced the weights, as weight averaging does.
REPLACED_WEIGHTS_KEY = "lightning_sm_replaced_weights"
_SUFFIX = ".ckpt"


def find_checkpoints(directory: str) -> Iterator[str]:
    """Yield the relative paths of the checkpoints at any depth below a directory.

    Checkpoints are files and directories named ``*.ckpt``. Hidden ones, and those in hidden directories, are skipped:
    they may be incomplete.
    """
    yield from _walk(directory, "", frozenset())


def is_discoverable(directory: str, path: str) -> bool:
    """Whether :func:`find_checkpoints` of ``directory`` will yield ``path`` after a checkpoint has been written there.

    Args:
        directory: The directory that is searched.
        path: A path, or a ``ModelCheckpoint`` pattern such as ``…/{epoch}/{val_loss:.2f}.ckpt``.
    """
    if "://" in path or "://" in directory:
        base = f"{directory.rstrip('/')}/"
        relative = path[len(base) :] if path.startswith(base) else ".."
    else:
        folder, name = os.path.split(path)
        relative = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(directory))
    *folders, name = relative.split("/")
    if any(part.startswith(".") for part in (*folders, name)):  # ".." leads out of the directory
        return False
    return name.endswith(_SUFFIX) and not any(part.endswith(_SUFFIX) for part in folders)


def _walk(directory: str, folder: str, parents: FrozenSet[str]) -> Iterator[str]:
    here = os.path.realpath(os.path.join(directory, folder))
    if here in parents:  # a symlink to a parent directory
        return
    try:
        entries = sorted(os.listdir(here))
    except OSError:
        return
    for entry in entries:
        name = os.path.join(folder, entry)
        path = os.path.join(directory, name)
        # A dangling symlink is not a checkpoint.
        if entry.startswith(".") or not os.path.exists(path):
            continue
        if entry.endswith(_SUFFIX):
            yield name
        elif os.path.isdir(path):
            yield from _walk(directory, name, parents | {here})


# Settings that a restart of the same job may change: they do not affect what is trained.
_IGNORED_SETTINGS = frozenset(
    {
        "ckpt_path",
        "config",
        "sagemaker",
        "seed_everything",  # may have been drawn at random in the config; as a hyperparameter it is compared
        "subcommand",
        "trainer.accelerator",
        "trainer.default_root_dir",
        "trainer.devices",
        "trainer.enable_checkpointing",
        "trainer.enable_model_summary",
        "trainer.enable_progress_bar",
        "trainer.fast_dev_run",
        "trainer.log_every_n_steps",
        "trainer.logger",
        "trainer.max_epochs",
        "trainer.max_steps",
        "trainer.max_time",
        "trainer.min_epochs",
        "trainer.min_steps",
        "trainer.num_nodes",
        "trainer.plugins",
        "trainer.profiler",
        "trainer.strategy",
    }
)


@dataclass(frozen=True)
class JobIdentity:
    """Identifies a training job across its restarts.

    Args:
        name: The training job's name, which SageMaker keeps when it restarts an interrupted job.
        settings: A digest of each hyperparameter and of each setting that affects what is trained, by its dotted key.
    """

    name: Optional[str] = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: TrainingJob, config: Optional[Mapping[str, Any]] = None) -> "JobIdentity":
        """Return the identity of a job.

        Args:
            job: The job, with its name and hyperparameters.
            config: The resolved configuration. Values that JSON cannot represent are left out.
        """
        settings = {**dict(_flatten(config or {})), **dict(_flatten(job.hyperparameters.values))}
        kept = {key: value for key, value in settings.items() if not _is_ignored(key)}
        seed = job.hyperparameters.values.get("seed_everything")
        return cls(job.name, {key: _digest(value, job) for key, value in sorted({**kept, "seed": seed}.items())})

    def is_same_job(self, other: "JobIdentity") -> bool:
        """Whether both are the same job: by name, or by settings if one of them has no name."""
        if self.name is not None and other.name is not None:
            return self.name == other.name
        return self.settings == other.settings

    def differences(self, other: "JobIdentity") -> Tuple[str, ...]:
        """Return the dotted keys of the settings that differ."""
        keys = sorted({*self.settings, *other.settings})
        return tuple(key for key in keys if self.settings.get(key) != other.settings.get(key))

    def __str__(self) -> str:
        return "a job without a name" if self.name is None else f"the job {self.name}"

    def to_dict(self) -> Dict[str, Any]:
        """Return the identity as plain values, which a checkpoint can hold."""
        return {"job_name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, content: Any) -> Optional["JobIdentity"]:
        """Return the identity that :meth:`to_dict` was called on; ``None`` if ``content`` is something else."""
        if not isinstance(content, dict):
            return None
        name, settings = content.get("job_name"), content.get("settings")
        if not isinstance(name, (str, type(None))) or not isinstance(settings, dict):
            return None
        return cls(name, {str(key): str(value) for key, value in settings.items()})


def _flatten(values: Mapping[str, Any], at: str = "") -> Iterator[Tuple[str, Any]]:
    for name, value in values.items():
        key = f"{at}{name}".replace(".init_args", "")
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{key}.")
        elif _is_plain(value):
            yield key, value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(inner) for inner in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _is_ignored(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in _IGNORED_SETTINGS for count in (1, 2))


def _digest(value: Any, job: TrainingJob) -> str:
    text = json.dumps(value, sort_keys=True)
    if job.base_dir:
        # Each rehearsal replaces /opt/ml by a directory of its own.
        text = text.replace(job.base_dir, "/opt/ml")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Candidate:
    """A checkpoint in the job's checkpoint directory.

    Args:
        name: Its path relative to the directory.
        size: Its size in bytes; of a sharded checkpoint that of all its files.
        epoch: Its ``epoch``.
        global_step: Its ``global_step``: the number of optimizer steps.
        batches: The number of trained batches, which distinguishes checkpoints while gradients are accumulated.
        epochs_done: The number of completed epochs, which distinguishes checkpoints before and after a validation.
        is_folder: Whether it is a directory of shards.
        saved_by: Which strategy wrote the directory: ``fsdp``, ``fsdp2`` or ``deepspeed_stage_2``; empty for a file.
        world_size: The number of processes that saved it; ``None`` if it is unknown.
        save_id: Identifies the save, in a directory with a manifest.
        missing: The files of the manifest that this host lacks, or has with another size.
        job: The job that wrote it; ``None`` if the checkpoint does not contain it.
        stopped_by: The limits of the training, if a callback had set ``trainer.should_stop``.
        problem: Why it cannot be used, as far as can be told without reading all of it; ``None`` if it can.
    """

    name: str
    size: int = 0
    epoch: int = 0
    global_step: int = 0
    batches: int = 0
    epochs_done: int = 0
    is_folder: bool = False
    saved_by: str = ""
    world_size: Optional[int] = None
    save_id: Optional[str] = None
    missing: Tuple[str, ...] = ()
    job: Optional[JobIdentity] = None
    stopped_by: Optional[Mapping[str, Any]] = None
    problem: Optional[str] = None

    @property
    def sort_key(self) -> Tuple[int, int, int, int, bool, bool, str]:
        """Sorts checkpoints from oldest to newest. File times do not: a restored directory has new ones."""
        is_last = os.path.basename(self.name).startswith("last")
        is_final = self.name == FINAL_WEIGHTS
        return self.global_step, self.batches, self.epochs_done, self.epoch, is_final, is_last, self.name

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch}, step {self.global_step})"

    def digest(self, directory: str, *, check: bool) -> str:
        """Return a SHA-256 of a file, or of a directory without a manifest, below ``directory``.

        Args:
            directory: This host's checkpoint directory.
            check: Whether to compare the CRC of each record.

        Raises:
            CorruptedError: It is not as it was written.
        """
        path = os.path.join(directory, self.name)
        if self.is_folder:
            return unlisted_digest(path, by_deepspeed=self.saved_by.startswith("deepspeed"), check=check)
        return verify_and_hash(path, check=check)


def list_candidates(directory: str) -> List[Candidate]:
    """Return the checkpoints below a directory, newest first; those with a problem come last."""
    return sorted_candidates(read_candidate(directory, name) for name in find_checkpoints(directory))


def newest_of_job(candidates: Sequence[Candidate], job: JobIdentity) -> Optional[Candidate]:
    """Return the first usable one of sorted candidates that the job wrote, or ``None``."""
    for candidate in candidates:
        is_usable = candidate.problem is None and candidate.name != FINAL_WEIGHTS
        if is_usable and candidate.job is not None and candidate.job.is_same_job(job):
            return candidate
    return None


def sort_by_job(candidates: Sequence[Candidate], job: JobIdentity) -> List[Candidate]:
    """Sort candidates (stably): the job's own first, then those without an identity, then those of other jobs."""
    ranks = {True: 0, None: 1, False: 2}
    return sorted(candidates, key=lambda each: ranks[None if each.job is None else each.job.is_same_job(job)])


def sorted_candidates(candidates: Iterable[Candidate]) -> List[Candidate]:
    """Return candidates newest first; those with a problem come last."""
    return sorted(candidates, key=lambda candidate: (candidate.problem is None, candidate.sort_key), reverse=True)


def read_candidate(directory: str, name: str) -> Candidate:
    """Return what a file or folder below a directory is; what is wrong with it is its ``problem``."""
    path = os.path.join(directory, name)
    try:
        if os.path.isdir(path):
            return _read_folder(path, name)
        return _describe(read_contents(path), name, os.path.getsize(path))
    except (CorruptedError, OSError) as error:
        return Candidate(name, problem=str(error))


def _read_folder(path: str, name: str) -> Candidate:
    part = Candidate(name, is_folder=True)
    problem = None
    try:
        folder = ShardedFolder.read(path)
        problem = folder.problem
        if folder.manifest is not None:
            part = replace(part, save_id=folder.manifest.save_id, missing=folder.missing)
        size = directory_size(path) if folder.manifest is None else folder.manifest.size
        contents = read_contents(folder.contents_path)
        described = _describe(contents, name, size, folder)
        problem = problem or upload_problem(folder, contents)
        return replace(described, problem=problem, save_id=part.save_id, missing=part.missing)
    except (CorruptedError, OSError) as error:
        return replace(part, problem=problem or str(error))


def _describe(contents: Dict[Any, Any], name: str, size: int, folder: Optional[ShardedFolder] = None) -> Candidate:
    epoch, step = contents.get("epoch"), contents.get("global_step")
    if not isinstance(epoch, int) or not isinstance(step, int):
        raise CorruptedError("it is not a Lightning checkpoint: it has no epoch and global_step")
    if not isinstance(contents.get("pytorch-lightning_version"), str):
        raise CorruptedError("it is not a Lightning checkpoint: it has no pytorch-lightning_version")
    if folder is None and "optimizer_states" not in contents:
        raise CorruptedError("it holds weights only (save_weights_only), so training cannot resume from it")
    if contents.get(REPLACED_WEIGHTS_KEY):
        raise CorruptedError("it was saved while a validation had replaced the weights of the model")
    fit_loop = _nested(contents, "loops", "fit_loop")
    batches = _nested(fit_loop, "epoch_loop.batch_progress", "total").get("processed")
    by_position = _nested(contents, "callbacks", "DataPosition", "data").get("world_size")
    epochs = _nested(fit_loop, "epoch_progress", "current").get("processed")
    return Candidate(
        name=name,
        size=size,
        epoch=epoch,
        global_step=step,
        batches=batches if isinstance(batches, int) else 0,
        epochs_done=epochs if isinstance(epochs, int) else 0,
        is_folder=folder is not None,
        saved_by="" if folder is None else folder.saved_by(contents),
        world_size=by_position if folder is None else folder.world_size(contents),
        job=JobIdentity.from_dict(contents.get(JOB_KEY)),
        stopped_by=_nested(contents, JOB_KEY).get("stopped_by"),
    )


def _nested(contents: Any, *keys: str) -> Dict[Any, Any]:
    for key in keys:
        contents = contents.get(key) if isinstance(contents, dict) else None
    return contents if isinstance(contents, dict) else {}
