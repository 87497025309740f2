"""``Serving``: what makes the archive one that SageMaker's PyTorch inference container serves as it is."""

import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from lightning_sm._export._format import Format
from lightning_sm.errors import ExportError

__all__ = ["Serving", "distribution_versions"]

# The container has its own, built for its hardware.
_NEVER = frozenset({"torch", "numpy", "lightning-sm"})


@dataclass(frozen=True)
class Serving:
    """What goes into the folder ``code`` of the archive.

    Args:
        requirements: The lines of ``requirements.txt``.
        sources: Files of the project, by their place below ``code``.
    """

    requirements: Tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model_class: type, format_: Format, lightning: str) -> "Serving":
        """Find out what the format needs.

        Args:
            model_class: The model's class.
            format_: The format.
            lightning: The name of the distribution that Lightning is.

        Raises:
            ExportError: The class cannot be imported elsewhere.
        """
        if not format_.needs_class:
            engine = ["onnxruntime"] if format_.name == "onnx" else []
            return cls(tuple(_pinned(engine)))
        if model_class.__module__ == "__main__":
            raise ExportError(
                f"sagemaker.export_serving: {model_class.__name__} is defined in the script itself, which would train "
                "again where it is imported to serve.",
                hint="Move the class into a module of its own, which the script imports.",
            )
        sources = _project_sources()
        if "inference.py" in sources:
            raise ExportError(
                f"sagemaker.export_serving writes code/inference.py, and the project has a module inference at "
                f"{sources['inference.py']}.",
                hint="Rename the module.",
            )
        owner = _installed_owner(model_class.__module__)
        own = _pinned([lightning, *_required_by(lightning), "jsonargparse", *format_.packages(), *owner])
        return cls(tuple(_together(own, _project_requirements())), sources)

    def write(self, folder: str) -> None:
        """Write the folder ``code`` below ``folder``."""
        code = os.path.join(folder, "code")
        os.makedirs(code, exist_ok=True)
        for name, path in self.sources.items():
            os.makedirs(os.path.dirname(os.path.join(code, name)), exist_ok=True)
            shutil.copyfile(path, os.path.join(code, name))
        shutil.copyfile(os.path.join(os.path.dirname(__file__), "_inference.py"), os.path.join(code, "inference.py"))
        with open(os.path.join(code, "requirements.txt"), "w", encoding="utf-8") as file:
            file.write("# What the model was trained with; torch and numpy are the container's own.\n")
            file.writelines(f"{line}\n" for line in self.requirements)


def _project_sources() -> Dict[str, str]:
    """The files of all modules that the project brought along and that have been imported."""
    installed = tuple({path + os.sep for path in sysconfig.get_paths().values()})
    found: Dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        parts = path.split(os.sep)
        foreign = path.startswith(installed) or "site-packages" in parts or "dist-packages" in parts
        is_script = name in ("__main__", "__mp_main__")
        if is_script or foreign or not path.endswith(".py") or name.split(".")[0] == "lightning_sm":
            continue
        below = name.replace(".", "/")
        place = f"{below}/__init__.py" if os.path.basename(path) == "__init__.py" else f"{below}.py"
        if os.path.isfile(path):
            found[place] = path
    return dict(sorted(found.items()))


def _project_requirements() -> List[str]:
    """The lines of the ``requirements.txt`` that stands beside the script."""
    if not os.path.isfile("requirements.txt"):
        return []
    with open("requirements.txt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line and not line.startswith("#")]


def _together(own: List[str], project: Iterable[str]) -> List[str]:
    """Our lines, and those of the project that name something else."""
    names = {_name(line) for line in own} | _NEVER
    return own + [line for line in project if _name(line) not in names]


def _required_by(distribution: str) -> List[str]:
    """What a distribution requires in any case."""
    # Loaded here, because it takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return []
    return [_name(line) for line in lines if "extra ==" not in line.replace("'", '"')]


def distribution_versions(names: Iterable[str]) -> Dict[str, str]:
    """The version of each that is installed."""
    # Loaded here, because it takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _pinned(names: Iterable[str]) -> List[str]:
    """A line for each that is installed, with its version."""
    found = distribution_versions(name for name in names if name not in _NEVER)
    return sorted(f"{name}=={version.split('+')[0]}" for name, version in found.items())


def _installed_owner(module: str) -> List[str]:
    """The distribution that a module was installed with, where it bears the module's name."""
    return [] if f"{module.replace('.', '/')}.py" in _project_sources() else [_name(module.split(".")[0])]


def _name(line: str) -> str:
    found: Optional[Any] = re.match(r"[A-Za-z0-9._-]+", line)
    return re.sub(r"[._-]+", "-", found.group()).lower() if found else line
