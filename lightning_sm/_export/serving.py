"""``Serving``: the folder ``code`` beside a model, with which SageMaker's PyTorch inference container serves it."""

import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Tuple

from lightning_sm._export.plan import ExportFormat
from lightning_sm._installed import is_installed
from lightning_sm._requirements import requirement_lines
from lightning_sm.errors import ExportError

__all__ = ["Serving", "class_path", "distribution_versions"]

# The modules of this package, which a served model does not need.
_OWN = ("lightning_sm", "lightning_sm_entry")
# The container has its own, built for its hardware.
_PROVIDED_BY_CONTAINER = frozenset({"torch", "numpy", "lightning-sm"})


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

        Reads ``requirements.txt`` in the working directory, which is that of the script, and the versions of installed
        packages.

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
        model_class = _given_class(model_class)
        if model_class.__module__ == "__main__":
            raise ExportError(
                f"sagemaker.export_serving: {model_class.__name__} is defined in the script itself, which would train "
                "again if it were imported for serving.",
                hint="Move the class into a module of its own, which the script imports.",
            )
        _check_importable(class_path(model_class))
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
        head = "# The versions that the model was trained with; torch and numpy are the container's own."
        Path(code, "requirements.txt").write_text("\n".join([head, *self.requirements, ""]), encoding="utf-8")


def class_path(model_class: type) -> str:
    """The qualified name by which the inference container imports a model's class."""
    cls = _given_class(model_class)
    return f"{cls.__module__}.{cls.__qualname__}"


def _given_class(model_class: type) -> type:
    """The class itself, of which torch makes a subclass for a model that it shards."""
    return next(cls for cls in model_class.__mro__ if not cls.__module__.startswith("torch.distributed"))


def _check_importable(path: str) -> None:
    # It imports torch.
    from lightning_sm._export.inference import import_object

    try:
        import_object(path)
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"sagemaker.export_serving: the inference container cannot import the model's class as {path} ({error}).",
            hint="Define the class at the top of a module, not within a function.",
        ) from None


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
    found: Dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        is_script = name in ("__main__", "__mp_main__")
        if is_script or is_installed(path) or not path.endswith(".py") or name.split(".")[0] in _OWN:
            continue
        relative = name.replace(".", "/")
        target = f"{relative}/__init__.py" if os.path.basename(path) == "__init__.py" else f"{relative}.py"
        if os.path.isfile(path):
            found[target] = path
    return dict(sorted(found.items()))


def _project_requirements() -> List[str]:
    """The requirements in ``requirements.txt`` in the working directory and in the files that it includes.

    Without hashes, which pip would require of ours, too, and without what the archive does not have: constraints and
    projects that are installed from where they are.
    """
    if not os.path.isfile("requirements.txt"):
        return []
    lines = (line for _, line in requirement_lines(Path(), "requirements.txt"))
    return [line for line in lines if not re.match(r"-[rce]|--(requirement|constraint|editable|require-hashes)", line)]


def _merge(pinned: List[str], project: Iterable[str]) -> List[str]:
    """The pinned lines, and those of the project for other distributions."""
    names = {_normalized(line) for line in pinned} | _PROVIDED_BY_CONTAINER
    return pinned + [line for line in project if _normalized(line) not in names]


def _required_by(distribution: str) -> List[str]:
    """The names of a distribution's requirements, without those of its extras."""
    # It takes longer to import than the rest of this package.
    from importlib.metadata import requires

    return [_normalized(line) for line in requires(distribution) or () if "extra ==" not in line.replace("'", '"')]


def _pinned(names: Iterable[str]) -> List[str]:
    """A requirement line with the version of each distribution that is installed."""
    found = distribution_versions(name for name in names if name not in _PROVIDED_BY_CONTAINER)
    return sorted(f"{name}=={version.split('+')[0]}" for name, version in found.items())


def _normalized(line: str) -> str:
    """The normalized distribution name that a requirement line begins with (PEP 503)."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    return re.sub(r"[._-]+", "-", found.group()).lower() if found else line
