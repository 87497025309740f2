"""Whose checkpoints these are: the job and program that train, and the model that is trained."""

import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["ModelIdentity", "ProgramIdentity"]

# Settings that a restart of the same training may change: they do not affect what is trained.
_IGNORED_SETTINGS = frozenset(
    {
        "ckpt_path",
        "config",
        "sagemaker",
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
class ProgramIdentity:
    """Identifies a program of a training job across the job's restarts.

    SageMaker runs the identical request again: the job's name, the program and its arguments are then the same.

    Args:
        job_name: The training job's name; ``None`` outside of a job.
        program: The name of the program's main file or module.
        settings: A digest of each hyperparameter and of each setting that affects what is trained, by its dotted key,
            and of the program's path and arguments.
    """

    job_name: Optional[str] = None
    program: str = "program"
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: TrainingJob, config: Optional[Mapping[str, Any]] = None) -> "ProgramIdentity":
        """Return the identity of this program.

        Args:
            job: The job, with its name and hyperparameters.
            config: The resolved configuration of a CLI. Values that JSON cannot represent are left out.
        """
        settings = {**dict(_flatten(config or {})), **dict(_flatten(job.hyperparameters.values))}
        kept = {key: value for key, value in settings.items() if not _is_ignored(key)}
        path, arguments = _main_program()
        # The stages of a job may be scripts of one name, each in a folder of its own.
        kept["path of the script"] = path
        if config is None:
            kept["arguments"] = list(arguments)
        return cls(job.name, _name_of(path), {key: _digest(value, job) for key, value in sorted(kept.items())})

    @property
    def series(self) -> str:
        """The name of the directory with this program's checkpoints."""
        return f"{self.program}-{_short_digest(json.dumps(dict(self.settings), sort_keys=True))[:6]}"

    def is_same_job(self, other: "ProgramIdentity") -> bool:
        """Whether both are of the same job, as far as their names tell."""
        return self.job_name is None or other.job_name is None or self.job_name == other.job_name

    def differences(self, other: "ProgramIdentity") -> Tuple[str, ...]:
        """Return the dotted keys of the settings that differ."""
        return _differing(self.settings, other.settings)

    def __str__(self) -> str:
        return "a job without a name" if self.job_name is None else f"the job {self.job_name}"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ProgramIdentity":
        """Return the identity of which ``asdict`` made this; unknown parts are left empty."""
        settings = content.get("settings")
        return cls(content.get("job_name"), str(content.get("program")), settings if isinstance(settings, dict) else {})


@dataclass(frozen=True)
class ModelIdentity:
    """What a fit trains.

    Args:
        class_name: The model's class with its module.
        numbers: A digest of each hyperparameter that is a number, a boolean or ``None``.
        texts: A digest of each hyperparameter that is a text, such as a path or a name, and of numbers in attributes of
            the model and its layers, such as ``lr`` and ``Dropout.p``. They may differ at each start.
    """

    class_name: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, pl_module: Any) -> "ModelIdentity":
        """Return the identity of a model, with the hyperparameters that it has saved."""
        found = dict(_flatten(dict(getattr(pl_module, "hparams_initial", None) or {})))
        digests = {key: _short_digest(repr(value)) for key, value in found.items()}
        texts = {key: digests[key] for key, value in found.items() if not _is_number(value)}
        # Of a model that saves no hyperparameters nothing else tells that this fit is another one.
        texts = {**_numbers_in_attributes(pl_module), **texts}
        name = f"{type(pl_module).__module__}.{type(pl_module).__qualname__}"
        return cls(name, {key: digests[key] for key, value in found.items() if _is_number(value)}, texts)

    def problem(self, saved: Mapping[str, Any]) -> Optional[str]:
        """Why a checkpoint of the model of which ``asdict`` made this is not this model's; ``None`` if it is."""
        if saved.get("class_name") != self.class_name:
            return f"it was one of {saved.get('class_name')}, and is one of {self.class_name}"
        names = _differing(self.numbers, saved.get("numbers"))
        return f"its hyperparameters differ in {', '.join(names)}" if names else None

    def differing_texts(self, saved: Mapping[str, Any]) -> Tuple[str, ...]:
        """Return the names of the hyperparameters that are texts, and of attributes, that differ."""
        return _differing(self.texts, saved.get("texts"))


def _numbers_in_attributes(model: Any) -> Dict[str, str]:
    """A digest of each attribute that is a number, of the layers of one class together."""
    found: Dict[str, List[Any]] = {}
    for module in model.modules():
        owner = "" if module is model else f"{type(module).__name__}."
        for name, value in vars(module).items():
            if name[0] != "_" and name != "training" and isinstance(value, (int, float)):
                found.setdefault(owner + name, []).append(value)
    return {name: _short_digest(repr(values)) for name, values in found.items()}


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _differing(now: Mapping[str, str], saved: Any) -> Tuple[str, ...]:
    before = saved if isinstance(saved, dict) else {}
    return tuple(sorted(key for key in {*now, *before} if now.get(key) != before.get(key)))


def _is_number(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_number, value))
    return value is None or isinstance(value, (bool, int, float))


def _main_program() -> Tuple[str, Sequence[str]]:
    """The file or module that this process runs, and its arguments; none for an interactive one."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None:
        return "interactive", ()
    # As Python has it: in the program's working directory of later a relative one (Python 3.8) would be another file.
    return file if spec is None else spec.name, sys.argv[1:]


def _name_of(path: str) -> str:
    name = re.sub(r"\.py$", "", os.path.basename(path)).replace(".__main__", "")
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("._") or "program"


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
    key = key.replace("-", "_")
    first, _, rest = key.partition(".")
    return not _IGNORED_SETTINGS.isdisjoint((first, f"{first}.{rest.partition('.')[0]}", f"trainer.{key}"))


def _digest(value: Any, job: TrainingJob) -> str:
    text = json.dumps(value, sort_keys=True)
    if job.base_dir:
        # Each rehearsal replaces /opt/ml by a directory of its own.
        text = text.replace(job.base_dir, "/opt/ml")
    return _short_digest(text)
