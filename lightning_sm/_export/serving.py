"""What stands beside an exported model: ``model.json`` (``ModelSummary``) and the folder ``code`` (``Serving``).

SageMaker's PyTorch inference container serves an archive with that folder. ``model.json`` says which checkpoint the
weights are from.
"""

import json
import math
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from lightning_sm._export.consolidated import folder_problem
from lightning_sm._export.plan import ExportFormat, ExportPlan, ExportWeights, json_subset
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import epochs_trained, strategy_of
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.transfers import has_file, has_folder, remote_folder_problem
from lightning_sm._version import __version__
from lightning_sm.errors import ExportError

__all__ = [
    "Serving",
    "distribution_versions",
    "BestCheckpoint",
    "ModelSummary",
    "find_best",
    "has_monitor",
    "summarize",
    "why_last_weights",
]

# The container has its own, built for its hardware.
_PROVIDED_BY_CONTAINER = frozenset({"torch", "numpy", "lightning-sm"})

_HOSTS_HINT = (
    ". HINT: each of several hosts has its own shards only, and S3 has them all. To export the best weights, set "
    "sagemaker.checkpoint_dir to a file system that the hosts share."
)


@dataclass(frozen=True)
class Serving:
    """The content of the folder ``code``, beside ``inference.py``, which is a copy of the module of that name.

    Args:
        requirements: The lines of ``requirements.txt``.
        sources: The project's modules: source files by their relative paths below ``code``.
    """

    requirements: Tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def collect(cls, model_class: type, format_: ExportFormat, lightning: str) -> "Serving":
        """Collect what loading the format needs.

        Reads ``requirements.txt`` in the working directory, and the versions of installed packages.

        Args:
            model_class: The model's class.
            format_: The format.
            lightning: The name of Lightning's distribution, such as ``pytorch-lightning``.

        Raises:
            ExportError: The class cannot be imported in another process, or a module of the project is called
                ``inference``.
        """
        if format_.is_graph:
            return cls(tuple(_pinned(["onnxruntime"] if format_ is ExportFormat.ONNX else [])))
        if model_class.__module__ == "__main__":
            raise ExportError(
                f"sagemaker.export_serving: {model_class.__name__} is defined in the script itself, which would train "
                "again if it were imported for serving.",
                hint="Move the class into a module of its own, which the script imports.",
            )
        sources = _project_sources()
        if "inference.py" in sources:
            raise ExportError(
                f"sagemaker.export_serving writes code/inference.py, and the project has a module inference at "
                f"{sources['inference.py']}.",
                hint="Rename the module.",
            )
        owner = [] if f"{model_class.__module__.replace('.', '/')}.py" in sources else [model_class.__module__]
        ours = [lightning, *_required_by(lightning), "jsonargparse", *format_.packages()]
        pinned = _pinned([*ours, *(_normalized(name.split(".")[0]) for name in owner)])
        return cls(tuple(_merge(pinned, _project_requirements())), sources)

    def write(self, folder: str) -> None:
        """Write the folder ``code`` below ``folder``."""
        code = os.path.join(folder, "code")
        os.makedirs(code, exist_ok=True)
        for name, path in self.sources.items():
            os.makedirs(os.path.dirname(os.path.join(code, name)), exist_ok=True)
            shutil.copyfile(path, os.path.join(code, name))
        shutil.copyfile(os.path.join(os.path.dirname(__file__), "inference.py"), os.path.join(code, "inference.py"))
        with open(os.path.join(code, "requirements.txt"), "w", encoding="utf-8") as file:
            file.write("# The versions that the model was trained with; torch and numpy are the container's own.\n")
            file.writelines(f"{line}\n" for line in self.requirements)


def distribution_versions(names: Iterable[str]) -> Dict[str, str]:
    """The versions of those distributions that are installed."""
    # It takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _project_sources() -> Dict[str, str]:
    """The files of all imported modules that belong to the project and not to an installed package."""
    installed = tuple({path + os.sep for path in sysconfig.get_paths().values()})
    found: Dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        parts = path.split(os.sep)
        is_installed = path.startswith(installed) or "site-packages" in parts or "dist-packages" in parts
        is_script = name in ("__main__", "__mp_main__")
        if is_script or is_installed or not path.endswith(".py") or name.split(".")[0] == "lightning_sm":
            continue
        relative = name.replace(".", "/")
        target = f"{relative}/__init__.py" if os.path.basename(path) == "__init__.py" else f"{relative}.py"
        if os.path.isfile(path):
            found[target] = path
    return dict(sorted(found.items()))


def _project_requirements() -> List[str]:
    """The lines of ``requirements.txt`` in the working directory, which is that of the script."""
    if not os.path.isfile("requirements.txt"):
        return []
    with open("requirements.txt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line and not line.startswith("#")]


def _merge(pinned: List[str], project: Iterable[str]) -> List[str]:
    """The pinned lines, and those of the project for other distributions."""
    names = {_normalized(line) for line in pinned} | _PROVIDED_BY_CONTAINER
    return pinned + [line for line in project if _normalized(line) not in names]


def _required_by(distribution: str) -> List[str]:
    """The names of a distribution's requirements, without those of its extras."""
    # It takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return []
    return [_normalized(line) for line in lines if "extra ==" not in line.replace("'", '"')]


def _pinned(names: Iterable[str]) -> List[str]:
    """A requirement line with the version of each distribution that is installed."""
    found = distribution_versions(name for name in names if name not in _PROVIDED_BY_CONTAINER)
    return sorted(f"{name}=={version.split('+')[0]}" for name, version in found.items())


def _normalized(line: str) -> str:
    """The normalized distribution name that a requirement line begins with (PEP 503)."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    return re.sub(r"[._-]+", "-", found.group()).lower() if found else line


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint.

    Args:
        path: Its file or URL; of a sharded one, that of its folder.
        score: The value of the monitored metric.
        monitor: The name of the metric.
    """

    path: str
    score: float
    monitor: str


@dataclass(frozen=True)
class ModelSummary:
    """The content of ``model.json``.

    Args:
        class_path: The qualified name of the model's class.
        metrics: ``trainer.callback_metrics``, the scalars of them.
        versions: Versions of the packages that trained the model.
        checkpoint: The checkpoint that the weights are from; ``None`` for the weights at the end of training.
        score: The best value of the monitored metric, if one is monitored.
        monitor: The name of that metric.
        epoch: The number of epochs that were trained.
        global_step: The number of optimizer steps.
        ended: Whether the program's training had ended, and was not stopped for the job to end.
        stopped_by: What stopped it.
        world_size: The number of processes that trained it.
        strategy: The name of the strategy's class.
        hparams: The saved hyperparameters that JSON can hold. With the code for serving, all of them or ``None``.
        format: The name of the format.
        file: The file that holds the model.
        files: All files that were written, except ``model.json``.
        submodule: The exported submodule; ``None`` for the whole model.
        example: The origin, shapes and dtypes of the example input, if the format needed one.
        comparison: What was compared after the file had been loaded again, and the difference.
        details: Entries of this format only.
    """

    class_path: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Optional[str] = None
    score: Optional[float] = None
    monitor: Optional[str] = None
    epoch: int = 0
    global_step: int = 0
    ended: bool = True
    stopped_by: Optional[str] = None
    world_size: int = 1
    strategy: Optional[str] = None
    hparams: Optional[Mapping[str, Any]] = None
    format: str = "state_dict"
    file: str = "model.pt"
    files: Tuple[str, ...] = ()
    submodule: Optional[str] = None
    example: Optional[Mapping[str, Any]] = None
    comparison: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """The text of ``model.json``."""
        return json.dumps(_finite(asdict(self)), indent=2, sort_keys=True, allow_nan=False) + "\n"


def summarize(
    namespace: Namespace,
    trainer: Trainer,
    module: Any,
    plan: ExportPlan,
    best: Optional[BestCheckpoint],
    hparams: Optional[Mapping[str, Any]],
) -> ModelSummary:
    """Summarize a trained model, without what the export itself adds.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        module: The trained model.
        plan: What is exported.
        best: The best checkpoint, if its weights are exported.
        hparams: The hyperparameters that the model saved.
    """
    import torch

    cls = type(module)
    return ModelSummary(
        class_path=f"{cls.__module__}.{cls.__qualname__}",
        metrics=_scalars(trainer.callback_metrics),
        versions={
            "lightning_sm": __version__,
            namespace.name: str(namespace.module().__version__),
            "torch": str(torch.__version__),
            **distribution_versions(plan.format.packages()),
        },
        checkpoint=None if best is None else best.path,
        score=None if best is None else best.score,
        monitor=None if best is None else best.monitor,
        epoch=epochs_trained(namespace, trainer),
        global_step=int(trainer.global_step),
        world_size=int(trainer.world_size),
        strategy=type(strategy_of(trainer)).__name__,
        hparams=hparams if plan.serving else json_subset(hparams),
    )


def find_best(trainer: Trainer) -> Optional[BestCheckpoint]:
    """The best checkpoint of the first callback that monitors a metric and has one; ``None`` if it is not readable."""
    callbacks: List[Any] = trainer.checkpoint_callbacks
    for callback in callbacks:
        path, score = getattr(callback, "best_model_path", ""), getattr(callback, "best_model_score", None)
        # A callback that monitors the step keeps the newest checkpoint, and the last weights are newer still.
        if not path or score is None or getattr(callback, "monitor", None) in (None, "step"):
            continue
        if has_file(path):
            return BestCheckpoint(str(path), float(score), str(callback.monitor))
        if not has_folder(path):
            log.warning("Best checkpoint %s does not exist any more; exporting the last weights instead", path)
            continue
        problem = remote_folder_problem(str(path)) if is_remote(path) else folder_problem(str(path))
        if problem is None:
            return BestCheckpoint(str(path), float(score), str(callback.monitor))
        log.warning(
            "Best checkpoint %s cannot be read here: %s; exporting the last weights instead%s",
            path,
            problem,
            _HOSTS_HINT if trainer.num_nodes > 1 and not is_remote(path) else "",
        )
    return None


def has_monitor(trainer: Trainer) -> bool:
    """Whether a ``ModelCheckpoint`` monitors a metric, so that there may be a best checkpoint."""
    monitors = (getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks)
    return any(monitor not in (None, "step") for monitor in monitors)


def why_last_weights(trainer: Trainer, weights: ExportWeights) -> str:
    """Why the last weights are exported and not those of a best checkpoint, for the log.

    Args:
        trainer: The trainer.
        weights: Which weights were asked for.
    """
    if weights is ExportWeights.LAST:
        return "sagemaker.export_weights is last"
    for monitor in (getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks):
        if monitor not in (None, "step"):
            return f"no readable checkpoint with the best {monitor}"
    return "no ModelCheckpoint monitors a metric"


def _scalars(metrics: Mapping[str, Any]) -> Dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if not hasattr(value, "numel") or value.numel() == 1}


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by ``None``, as in the metrics of a diverged training."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
