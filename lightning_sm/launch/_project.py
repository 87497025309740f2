"""What is wrong with a project before it is sent: what would fail, or go wrong, only when the container has started."""

import ast
import contextlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Collection, Iterator, List, Mapping, Optional, Sequence, Set

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lightning_sm._distributed.backend import SMDDP_INSTANCE_TYPES
from lightning_sm._doctor import Finding
from lightning_sm._failure import redact_patterns
from lightning_sm._requirements import requirement_lines
from lightning_sm.errors import LightningSMError
from lightning_sm.launch._images import Image, find_image
from lightning_sm.launch._line import decode, names_cli, read_line
from lightning_sm.launch._package import packed_files
from lightning_sm.launch._request import JobRequest, local_channels
from lightning_sm.launch._settings import LaunchSettings

__all__ = ["problems_of", "readable_secrets"]

_REQUIREMENTS = "requirements.txt"
_GPU_INSTANCE = re.compile(r"ml\.[pg]\d")
_READABLE = ("HyperParameters", "StaticHyperParameters", "Environment")
_PLATFORM = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
_IMPORT = re.compile(r"^\s*(?:import|from)\s+lightning_sm\b", re.MULTILINE)
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
    # Modules of these by other names, since not all of them are installed here.
    "sklearn", "cv2", "pil", "yaml", "mpl-toolkits", "pkg-resources", "smdistributed",
)  # fmt: skip


def problems_of(settings: LaunchSettings, request: JobRequest, *, objective: str = "") -> List[Finding]:
    """Return what is wrong with a project.

    Its files come first; where they are in order, its own parser reads the command line in a process of its own.

    Args:
        settings: What the job is asked to be.
        request: The request of the training job.
        objective: The metric that a tuning job optimizes.

    Raises:
        LaunchError: The folder cannot be read.
    """
    root, body = Path(settings.source_dir), request.as_body()
    files = packed_files(root)
    uri = body.get("AlgorithmSpecification", {}).get("TrainingImage")
    image = find_image(uri, "") if uri else Image("")
    code = {name: (root / name).read_text(encoding="utf-8", errors="replace") for name in files if name.endswith(".py")}
    found = [
        *_of_program(settings, files),
        *_of_instances(settings, body, image),
        *_of_configs(root, files, body, names_cli(code.get(PurePosixPath(settings.entry_point).as_posix(), ""))),
        *_of_requirements(root, files, image, code),
        *_of_world(body, image, code),
        *([] if not objective else _of_metrics([objective], "is optimized", code, is_error=True)),
    ]
    if any(each.is_error for each in found):
        return found
    local = local_channels(settings)
    away = [each["ChannelName"] for each in body.get("InputDataConfig", ()) if each["ChannelName"] not in local]
    unread = [path for path in _configs(body) if _is_brought(path, files, away)]
    try:
        line = read_line(settings.source_dir, settings.entry_point, body, local=local, unread=unread)
    except LightningSMError as error:
        return [*found, Finding("command line", error.problem, error.hint or "", is_error=True)]
    if line.problem is not None:
        found.append(Finding("command line", f"The command line was not checked: {line.problem}.", "The job reads it."))
    types = _instance_types(body)
    if line.accelerator in ("gpu", "cuda") and types and not any(map(_GPU_INSTANCE.match, types)):
        found.append(
            Finding(
                "accelerator",
                f"trainer.accelerator is {line.accelerator}, and {types[0]} has no GPU.",
                "Leave it out, or choose an instance with GPUs, as ml.g5.xlarge.",
                is_error=True,
            )
        )
    return [*found, *_of_metrics(line.monitored, "is monitored", code, is_error=False)]


def readable_secrets(body: Mapping[str, Any]) -> List[Finding]:
    """Name the variables and hyperparameters of a request whose values look like secrets.

    Values that read as secrets are found by the patterns that redact failure reasons, together with their names.
    """
    job = body.get("TrainingJobDefinition", body)
    values = {name: text for key in _READABLE for name, text in job.get(key, {}).items()}
    lines = {name: f"{name}={value}" for name, value in values.items()}
    return [
        Finding(
            "secrets",
            f"{name} looks like a secret, and whoever may describe the job can read it.",
            "Let the program fetch it from AWS Secrets Manager.",
        )
        for name, line in sorted(lines.items())
        if redact_patterns(line) != line
    ]


def _instance_types(body: Mapping[str, Any], groups: Collection[str] = ()) -> List[str]:
    """The instance types of a request, of the named groups alone."""
    resources = body.get("ResourceConfig", {})
    listed = [*resources.get("InstanceGroups", ()), *resources.get("InstancePreferences", ())] or [resources]
    wanted = [each for each in listed if not groups or each.get("InstanceGroupName") in groups]
    return [each["InstanceType"] for each in wanted if "InstanceType" in each]


def _of_program(settings: LaunchSettings, files: Collection[str]) -> Iterator[Finding]:
    program, is_torchrun = settings.entry_point, settings.distribution == "torch_distributed"
    if PurePosixPath(program).as_posix() not in files or re.search(r"\s", program):
        yield Finding(
            "program",
            f"--entry-point {program} is not in the archive of --source-dir {Path(settings.source_dir).resolve()}.",
            "Name a file below --source-dir by its path in it, without blanks; names in .gitignore are left out.",
            is_error=True,
        )
    if is_torchrun and not program.endswith(".py"):
        yield Finding(
            "program",
            f"--distribution torch_distributed cannot start {program}: torchrun takes a .py file.",
            "Name a .py file, or use --distribution none.",
            is_error=True,
        )
    if is_torchrun and "setup.py" in files:
        yield Finding(
            "program",
            "A setup.py in --source-dir makes the toolkit take the folder for a package, which torchrun cannot start.",
            "Move the program and what it needs to a folder without setup.py.",
            is_error=True,
        )


def _of_instances(settings: LaunchSettings, body: Mapping[str, Any], image: Image) -> Iterator[Finding]:
    types = _instance_types(body)
    if settings.distribution == "smdistributed":
        wrong = set(_instance_types(body, settings.distribution_groups)) - set(SMDDP_INSTANCE_TYPES)
        hint = f"Use torch_distributed, or an image up to pytorch-2.5-gpu on one of {', '.join(SMDDP_INSTANCE_TYPES)}."
        if image.has_smddp is False:
            yield Finding(
                "distribution", f"--distribution smdistributed: {image.uri} has no SMDDP.", hint, is_error=True
            )
        if wrong:
            yield Finding(
                "distribution",
                f"--distribution smdistributed: SMDDP does not run on {', '.join(sorted(wrong))}.",
                hint,
                is_error=True,
            )
    if settings.distribution == "smp" and image.torch is not None and Version(image.torch) >= Version("2.1"):
        yield Finding(
            "distribution",
            f"--distribution smp: {image.uri} has no smdistributed.modelparallel.",
            "Use an image up to pytorch-2.0.1-gpu, or FSDP2 (strategy smddp_fsdp2) with torch_distributed.",
            is_error=True,
        )
    if image.processor == "cpu" and any(map(_GPU_INSTANCE.match, types)):
        yield Finding(
            "image",
            f"The image {image.uri} is for CPUs, and {types[0]} has GPUs.",
            "Use the -gpu image.",
            is_error=True,
        )


def _of_world(body: Mapping[str, Any], image: Image, code: Mapping[str, str]) -> Iterator[Finding]:
    """Say what happens to a program that does not import this package."""
    if any(_IMPORT.search(text) for text in code.values()):
        return
    text = "a Trainer that is not given the job's world ends the job."
    hint = "Put lightning_sm.auto() at the top of the program."
    # torch calls the package by itself from 2.5 on.
    is_called = image.torch is None or Version(image.torch) >= Version("2.5")
    if is_called and body.get("Environment", {}).get("LIGHTNING_SM_AUTO") == "1":
        text = "LIGHTNING_SM_AUTO=1 gives each Trainer the job's world."
        hint = "--env LIGHTNING_SM_AUTO=0 switches it off."
    yield Finding("world", f"No file of the source imports lightning_sm: {text}", hint)


def _of_metrics(names: Sequence[str], use: str, code: Mapping[str, str], *, is_error: bool) -> Iterator[Finding]:
    """Metrics that nothing can log: a part of their name stands nowhere in the code."""
    words = set(re.findall(r"[A-Za-z0-9]+", " ".join(code.values()).replace("_", " ")))
    for name in names:
        parts = re.findall(r"[A-Za-z0-9]+", re.sub(r"_(step|epoch)$|/dataloader_idx_\d+$", "", name).replace("_", " "))
        if not words.issuperset(parts):
            yield Finding(
                "monitor",
                f"{name} {use}, and {next(part for part in parts if part not in words)!r} stands in no .py file.",
                "Correct the name, unless a library logs it.",
                is_error,
            )


def _configs(body: Mapping[str, Any]) -> List[str]:
    given = decode(body.get("HyperParameters", {}).get("config", "[]"))
    # A config may stand on the line itself.
    listed = given if isinstance(given, list) else [given]
    return [each for each in listed if isinstance(each, str) and not each.startswith("{")]


def _is_brought(path: str, files: Collection[str], channels: Collection[str]) -> bool:
    """Whether a config file is not in the archive, but in a folder of the container or in one of these channels."""
    is_packed = PurePosixPath(path).as_posix() in files
    return not is_packed and (path.startswith("/opt/ml/") or path.partition("/")[0] in channels)


def _of_configs(root: Path, files: Collection[str], body: Mapping[str, Any], is_cli: bool) -> Iterator[Finding]:
    channels = [each["ChannelName"] for each in body.get("InputDataConfig", ())]
    for path in _configs(body):
        name = PurePosixPath(path).as_posix()
        if name in files:
            yield from _of_paths(root / name, name)
        elif not _is_brought(path, files, channels):
            is_there = (root / path).is_file()
            why = "is left out of the archive by .gitignore" if is_there else f"is not in {root.resolve()}"
            yield Finding(
                "config",
                f"The config file {path} {why}.",
                "Give a path in --source-dir, which is packed.",
                # A script may mean anything by its --config.
                is_error=is_cli or is_there,
            )


def _of_paths(path: Path, name: str) -> Iterator[Finding]:
    text = re.sub(r"(^|\s)#.*", "", path.read_text(encoding="utf-8", errors="replace"))
    local = sorted(set(re.findall(r"(?<![^\s'\"\[{,])(/(?!opt/ml/|tmp/|dev/)\w[^\s:,'\"\]}]*/[^\s,'\"\]}]*)", text)))
    if local:
        yield Finding(
            "paths",
            f"{name} names {', '.join(local[:3])}, a path of this machine that the container does not have.",
            "Bring the files in a channel, or give a path relative to the source folder.",
        )


def _of_requirements(root: Path, files: Collection[str], image: Image, code: Mapping[str, str]) -> Iterator[Finding]:
    python = {"python_version": image.python} if image.python else {}
    named: Set[str] = set()
    for place, text in requirement_lines(root, _REQUIREMENTS) if _REQUIREMENTS in files else ():
        path = _path_of(text, place)
        if path is not None:
            if path != "." and not any(name == path or name.startswith(f"{path}/") for name in files):
                yield Finding(
                    "requirements",
                    f"{place} names {path}, which is not in the archive of {root.resolve()}.",
                    "Put the file into the source folder; names that .gitignore excludes are left out.",
                    is_error=True,
                )
            continue
        try:
            requirement = Requirement(text)
        except ValueError:
            continue  # pip reads more forms than packaging does, such as addresses and options
        named.add(canonicalize_name(requirement.name))
        if requirement.marker is None or requirement.marker.evaluate({**_PLATFORM, **python}):
            yield from _of_versions(requirement, place, image)
    if image.is_aws:
        yield from _of_imports(files, named, code)


def _path_of(text: str, place: str) -> Optional[str]:
    """The path in the source folder that a line of requirements names, as pip finds it; ``None`` if it names none."""
    option = re.match(r"(-r|-c|-e|-f|--requirement|--constraint|--editable|--find-links)[ =]*(\S+)", text)
    word = re.split(r"\[|;|\s", option[2] if option else text, maxsplit=1)[0]
    address = re.search(r"\bfile://(\S+)", text)
    if address is not None:
        return address[1]
    is_path = option or word.startswith((".", "/")) or re.search(r"\.(whl|tar\.gz|zip)$", word)
    if not is_path or "://" in word or "@" in text.partition(";")[0]:
        return None
    # Other files of requirements are named beside the one that names them, anything else from where pip runs.
    is_beside = option and option[1] in ("-r", "-c", "--requirement", "--constraint")
    return os.path.normpath(os.path.join(os.path.dirname(place) if is_beside else "", word))


def _of_versions(requirement: Requirement, place: str, image: Image) -> Iterator[Finding]:
    name, wanted = canonicalize_name(requirement.name), requirement.specifier
    if image.torch is None:
        return
    torch = Version(image.torch)
    if name == "torch" and not wanted.contains(torch, prereleases=True):
        yield Finding(
            "requirements",
            f"{place} wants {requirement}, and {image.uri} has torch {torch}, which pip would replace.",
            "Leave torch out, or choose the image of that version.",
            is_error=True,
        )
    if name not in ("lightning", "pytorch-lightning"):
        return
    pinned = [Version(each.version).release[:2] for each in wanted if each.operator == "==" and "*" not in each.version]
    series = [each for each in _LIGHTNING if wanted.contains(each[0]) or Version(each[0]).release[:2] in pinned]
    if not series:
        return
    _, least, end = series[-1]
    if torch < Version(least) or (end and torch >= Version(end)):
        yield Finding(
            "requirements",
            f"{place} wants {requirement}, which needs torch {least} or newer{f' and before {end}' if end else ''}; "
            f"{image.uri} has {torch}.",
            "Name a release of Lightning for this torch, or another image.",
            is_error=True,
        )


def _of_imports(files: Collection[str], named: Collection[str], code: Mapping[str, str]) -> Iterator[Finding]:
    """What the source imports, and neither the image nor a requirement brings, by the packages of this machine."""
    if sys.version_info < (3, 10):
        return
    brought = [canonicalize_name(each) for each in (*_IN_IMAGES, *named)]
    for name in brought:  # which grows by what each of them requires, as far as it is installed here
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            required = [each for each in importlib.metadata.requires(name) or () if "extra ==" not in each]
            names = {canonicalize_name(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in required}
            brought += sorted(names.difference(brought))
    own = {part.partition(".")[0] for name in files for part in name.split("/")}
    places = {module: name for name, text in sorted(code.items()) for module in _imports(text)}
    foreign = sorted(places.keys() - {*sys.stdlib_module_names, *own})
    unknown = [module for module in foreign if canonicalize_name(module) not in brought]
    # It reads the files of all packages here, which takes a second where there are many.
    owners = importlib.metadata.packages_distributions() if unknown else {}
    for module in unknown:
        packages = {canonicalize_name(each) for each in owners.get(module, ())}
        if packages.isdisjoint(brought):
            yield Finding(
                "requirements",
                f"{places[module]} imports {module}, which {_REQUIREMENTS} does not name and AWS's images do not have.",
                f"Add {min(packages, default='the package that has it')} to {_REQUIREMENTS} in the source folder.",
            )


def _imports(text: str) -> Set[str]:
    """The top-level modules that a file imports always: not below ``try`` or ``if``, and not in a function."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return set()
    direct = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    direct += [str(node.module) for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in direct}
