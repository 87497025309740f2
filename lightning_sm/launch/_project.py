"""What is wrong with a project before it is sent: what would fail only when the container has started."""

import ast
import importlib.metadata
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Collection, Dict, Iterator, List, Sequence, Set, Tuple

from lightning_sm.launch._images import Image
from lightning_sm.launch._line import ReadLine
from lightning_sm.launch._package import packed_files
from lightning_sm.launch._settings import Instances

__all__ = ["Problem", "is_logged", "problems_of_line", "problems_of_source"]

_REQUIREMENTS = "requirements.txt"
_GPU_INSTANCE = re.compile(r"ml\.[pg]\d")
# The newest release of each series of Lightning, the torch that it needs at least, and the first that it cannot have:
# https://lightning.ai/docs/pytorch/stable/versioning.html#compatibility-matrix. Lightning before 1.8 names torch in a
# form (`>=1.7.*`) that pip 24.1 refuses, and none before 1.9 is for torch 2.
_LIGHTNING = (
    ("1.5.10", "1.7", "2.0"), ("1.6.5", "1.8", "2.0"), ("1.7.7", "1.9", "2.0"), ("1.8.6", "1.9", "2.0"),
    ("1.9.5", "1.10", ""), ("2.0.9", "1.11", ""), ("2.1.4", "1.12", ""), ("2.2.5", "1.13", ""), ("2.3.3", "2.0", ""),
    ("2.4.0", "2.1", ""), ("2.5.5", "2.1", ""), ("2.6.6", "2.1", ""),
)  # fmt: skip
# What AWS's PyTorch training images hold beside torch: their Dockerfiles in aws/deep-learning-containers.
_IN_IMAGES = (
    "torch", "torchvision", "torchaudio", "torchtext", "torchdata", "numpy", "scipy", "pandas", "scikit-learn",
    "pillow", "opencv-python", "boto3", "botocore", "awscli", "s3fs", "fsspec", "sagemaker", "sagemaker-training",
    "sagemaker-pytorch-training", "sagemaker-experiments", "matplotlib", "seaborn", "bokeh", "plotly", "imageio",
    "psutil", "pyyaml", "mpi4py", "cython", "requests", "tqdm", "packaging", "numba", "ninja", "click", "cloudpickle",
    "ipython", "smdistributed-dataparallel", "apex", "flash-attn", "setuptools", "pip", "wheel", "lightning-sm",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a project.

    Args:
        check: What was examined, such as ``requirements``.
        text: What was found.
        hint: What to do about it.
        is_error: Whether the job would fail; otherwise it may.
    """

    check: str
    text: str
    hint: str
    is_error: bool = True

    def __str__(self) -> str:
        return f"{self.text} HINT: {self.hint}"


def problems_of_source(
    source_dir: str, image: Image, configs: Sequence[str], channels: Collection[str]
) -> List[Problem]:
    """Return what is wrong with the files of a project.

    Args:
        source_dir: Its folder.
        image: The image of the job.
        configs: The config files that the line names.
        channels: The names of the channels, with which the path of a config file may begin.

    Raises:
        LaunchError: The folder cannot be read.
    """
    root, files = Path(source_dir), packed_files(Path(source_dir))
    return [*_of_configs(root, files, configs, channels), *_of_requirements(root, files, image)]


def problems_of_line(line: ReadLine, instances: Sequence[Instances]) -> List[Problem]:
    """Return what is wrong with what the project's parser has read.

    Args:
        line: What it has read.
        instances: The instances of the job.
    """
    found: List[Problem] = []
    if line.accelerator in ("gpu", "cuda") and not any(_GPU_INSTANCE.match(each.type) for each in instances):
        found.append(
            Problem(
                "accelerator",
                f"trainer.accelerator is {line.accelerator}, and {instances[0].type} has no GPU.",
                "Leave it out, or choose an instance type with GPUs, as ml.g5.xlarge.",
            )
        )
    missing = [name for name in line.monitored if not is_logged(name, line)]
    if missing:
        found.append(
            Problem(
                "monitor",
                f"{', '.join(missing)} is monitored, and {line.model} logs {', '.join(line.logged)}.",
                "Correct the name, unless a callback logs it.",
                is_error=False,
            )
        )
    return found


def is_logged(name: str, line: ReadLine) -> bool:
    """Whether a metric may be logged: the model logs it, or what the model logs cannot be read completely."""
    return not line.is_complete or any(
        name == each or name.startswith(f"{each}/dataloader_idx_") for each in line.logged
    )


def _of_configs(
    root: Path, files: Collection[str], configs: Sequence[str], channels: Collection[str]
) -> Iterator[Problem]:
    for path in configs:
        name = PurePosixPath(path).as_posix()
        if name in files:
            yield from _of_paths(root / name, name)
        elif not path.startswith("/opt/ml/") and path.partition("/")[0] not in channels:
            why = (
                "is left out of the archive by .gitignore" if (root / path).is_file() else f"is not in {root.resolve()}"
            )
            yield Problem("config", f"The config file {path} {why}.", "Give a path in --source-dir, which is packed.")


def _of_paths(path: Path, name: str) -> Iterator[Problem]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        yield Problem("config", f"The config file {name} cannot be read: {reason}.", "Correct the file.")
        return
    local = sorted({each for each in _texts(content) if re.match(r"/(?!opt/ml/|tmp/|dev/)\w[^\s:]*/", each)})
    if local:
        yield Problem(
            "paths",
            f"{name} names {', '.join(local[:3])}, a path of this machine that the container does not have.",
            "Bring the files in a channel, or give a path relative to the source folder.",
            is_error=False,
        )


def _texts(node: Any) -> Iterator[str]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, str):
        yield node
    for each in inner:
        yield from _texts(each)


def _of_requirements(root: Path, files: Collection[str], image: Image) -> Iterator[Problem]:
    from packaging.requirements import Requirement

    named: Set[str] = set()
    for place, text in _requirements(root, _REQUIREMENTS) if _REQUIREMENTS in files else ():
        path = _path_of(text)
        if path is not None:
            inside = PurePosixPath(path).as_posix().lstrip("/")
            if path.startswith("/") or not any(name == inside or name.startswith(f"{inside}/") for name in files):
                yield Problem(
                    "requirements",
                    f"{place} names {path}, which is not in the archive of {root.resolve()}.",
                    "Put the file into the source folder; names that .gitignore excludes are left out.",
                )
            continue
        try:
            requirement = Requirement(text)
        except ValueError:
            continue  # pip reads more forms than packaging does, such as addresses and options
        named.add(_normal(requirement.name))
        if requirement.marker is None or requirement.marker.evaluate(_environment(image)):
            yield from _of_versions(requirement, place, image)
    if image.is_aws:
        yield from _of_imports(root, files, named)


def _requirements(root: Path, name: str) -> Iterator[Tuple[str, str]]:
    """Yield each line of a file of requirements with its place, and those of the files that it includes."""
    text = (root / name).read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), 1):
        wanted = re.sub(r"(^|\s)#.*", "", line).strip()
        if not wanted:
            continue
        yield f"{name}:{number}", wanted
        included = re.match(r"(?:-r|--requirement)[ =]*(\S+)", wanted)
        inner = (Path(name).parent / included[1]).as_posix() if included else ""
        if included and inner != name and (root / inner).is_file():
            yield from _requirements(root, inner)


def _path_of(text: str) -> Any:
    """The path in the source folder that a line of requirements names, ``None`` if it names none."""
    option = re.match(r"(?:-r|-c|-e|-f|--requirement|--constraint|--editable|--find-links)[ =]*(\S+)", text)
    word = option[1] if option else re.split(r"\[|;|\s", text, maxsplit=1)[0]
    is_path = option or word.startswith((".", "/")) or re.search(r"\.(whl|tar\.gz|zip)$", word)
    return None if not is_path or "://" in word or "@" in text.partition(";")[0] else word


def _of_versions(requirement: Any, place: str, image: Image) -> Iterator[Problem]:
    from packaging.version import Version

    name, wanted = _normal(requirement.name), requirement.specifier
    if image.torch is None:
        return
    torch = Version(image.torch)
    if name == "torch" and not wanted.contains(torch, prereleases=True):
        yield Problem(
            "requirements",
            f"{place} wants {requirement}, and {image.uri} has torch {torch}, which pip would replace.",
            "Leave torch out, or choose the image of that version.",
        )
    if name not in ("lightning", "pytorch-lightning"):
        return
    exact = [each.version for each in wanted if each.operator == "==" and "*" not in each.version]
    series = [each for each in _LIGHTNING if wanted.contains(each[0]) or any(_same(each[0], pin) for pin in exact)]
    if not series:
        return
    _, least, end = series[-1]
    if torch < Version(least) or (end and torch >= Version(end)):
        yield Problem(
            "requirements",
            f"{place} wants {requirement}, which needs torch {least} or newer{f' and before {end}' if end else ''}; "
            f"{image.uri} has {torch}.",
            "Name a release of Lightning for this torch, or another image.",
        )


def _same(release: str, pin: str) -> bool:
    return release.split(".")[:2] == pin.split(".")[:2]


def _environment(image: Image) -> Dict[str, str]:
    version = {"python_version": image.python} if image.python else {}
    return {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", **version}


def _of_imports(root: Path, files: Collection[str], named: Collection[str]) -> Iterator[Problem]:
    """What the source imports, and neither the image nor a requirement brings, by the packages of this machine."""
    if sys.version_info < (3, 10):
        return
    brought = {name for each in (*_IN_IMAGES, *named) for name in _with_requirements(_normal(each), set())}
    owners = importlib.metadata.packages_distributions()
    own = {part.partition(".")[0] for name in files for part in name.split("/")}
    places = {module: name for name in sorted(files) if name.endswith(".py") for module in _imports(root / name)}
    for module, place in sorted(places.items()):
        packages = {_normal(each) for each in owners.get(module, ())} or {_normal(module)}
        if module not in sys.stdlib_module_names and module not in own and not packages & brought:
            yield Problem(
                "requirements",
                f"{place} imports {module}, which {_REQUIREMENTS} does not name and AWS's images do not have.",
                f"Add {sorted(packages)[0]} to {_REQUIREMENTS} in the source folder.",
                is_error=False,
            )


def _with_requirements(name: str, seen: Set[str]) -> Set[str]:
    """A package and what it requires, as far as it is installed here."""
    if name not in seen:
        seen.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            required = []
        for text in required:
            if "extra ==" not in text:
                _with_requirements(_normal(re.split(r"[^\w.-]", text, maxsplit=1)[0]), seen)
    return seen


def _imports(path: Path) -> Set[str]:
    """The top-level modules that a file imports always: not below ``try`` or ``if``, and not in a function."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return set()
    direct = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    direct += [str(node.module) for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in direct}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
