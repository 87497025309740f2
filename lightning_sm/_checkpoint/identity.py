"""``JobIdentity``: which training job a checkpoint was written by."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["JobIdentity"]

# Settings that say where, how long and how visibly a job trains, which a restart of it may change.
_NOT_WHAT_IS_TRAINED = frozenset(
    {
        "ckpt_path",
        "config",
        "sagemaker",
        "seed_everything",  # the config's may have been drawn at random; a hyperparameter counts
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
    """What tells one training job from another.

    Args:
        name: The training job's name, which SageMaker keeps when it restarts an interrupted job.
        settings: A digest of each hyperparameter and of each setting that says what is trained, by its dotted key.
    """

    name: Optional[str] = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: TrainingJob, config: Optional[Mapping[str, Any]] = None) -> "JobIdentity":
        """Return the identity of a job.

        Args:
            job: The job, with its name and hyperparameters.
            config: The resolved configuration. Values that are neither plain nor made of plain ones are left out.
        """
        said = {**dict(_flat(config or {})), **dict(_flat(job.hyperparameters.values))}
        kept = {key: value for key, value in said.items() if not _is_beside(key)}
        seed = job.hyperparameters.values.get("seed_everything")
        return cls(job.name, {key: _digest(value, job) for key, value in sorted({**kept, "seed": seed}.items())})

    def is_same_job(self, other: "JobIdentity") -> bool:
        """Whether both are one job: by their names, or by their settings where one of them has no name."""
        if self.name is not None and other.name is not None:
            return self.name == other.name
        return self.settings == other.settings

    def differences(self, other: "JobIdentity") -> Tuple[str, ...]:
        """The dotted keys of the settings in which they differ."""
        keys = sorted({*self.settings, *other.settings})
        return tuple(key for key in keys if self.settings.get(key) != other.settings.get(key))

    def __str__(self) -> str:
        return "a job without a name" if self.name is None else f"the job {self.name}"

    def as_plain(self) -> Dict[str, Any]:
        """The identity as plain values, which a checkpoint can hold."""
        return {"job_name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_plain(cls, content: Any) -> Optional["JobIdentity"]:
        """Return what :meth:`as_plain` gave; ``None`` for anything else."""
        if not isinstance(content, dict):
            return None
        name, settings = content.get("job_name"), content.get("settings")
        if not isinstance(name, (str, type(None))) or not isinstance(settings, dict):
            return None
        return cls(name, {str(key): str(value) for key, value in settings.items()})


def _flat(values: Mapping[str, Any], at: str = "") -> Iterator[Tuple[str, Any]]:
    for name, value in values.items():
        key = f"{at}{name}".replace(".init_args", "")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        elif _is_plain(value):
            yield key, value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(inner) for inner in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _is_beside(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in _NOT_WHAT_IS_TRAINED for count in (1, 2))


def _digest(value: Any, job: TrainingJob) -> str:
    text = json.dumps(value, sort_keys=True)
    if job.base_dir:
        # A rehearsal has another directory in the place of /opt/ml each time.
        text = text.replace(job.base_dir, "/opt/ml")
    return hashlib.sha256(text.encode()).hexdigest()[:12]
