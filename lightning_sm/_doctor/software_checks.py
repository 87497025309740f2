"""Checks of versions: Python, Lightning and torch against the tested rows, the image's torch, what must fit it."""

import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status
from lightning_sm._doctor.host import (
    Package,
    find_package,
    gpus,
    of_this_host,
    packages,
    read_text,
    torch_build,
    version,
)
from lightning_sm._lightning.import_hook import known_incompatibilities
from lightning_sm._lightning.levels import VERIFIED
from lightning_sm._version import __version__

__all__ = ["CHECKS"]

_LIGHTNINGS = ("pytorch-lightning", "lightning")
# pip installs this package in 3.8 and later.
_NEWEST_PYTHON = (3, 13)
# What is built for one torch, and fails when it is imported beside another one.
_BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchtext")
_FITTING = (*_LIGHTNINGS, "torchmetrics", *_BUILT_FOR_TORCH)
_MAX_NAMED = 5


def _python(machine: Machine, found: Tuple[int, ...] = sys.version_info[:3]) -> Iterator[Finding]:
    """Python's version against those that are tested."""
    text = f"{_numbers(found)}, lightning-sm {__version__}"
    if found[:2] > _NEWEST_PYTHON:
        tested = f"lightning-sm is tested with Python 3.8 to {_numbers(_NEWEST_PYTHON)}"
        yield Finding("Python", Status.WARNING, f"{text}: {tested}.", "Use an image with one of these.")
    else:
        yield Finding("Python", Status.OK, text)


def _lightning(machine: Machine) -> Iterator[Finding]:
    """Lightning and torch against the tested pairs; whether both namespaces are of one version."""
    found = {name: package for name in _LIGHTNINGS for package in [find_package(machine, name)] if package}
    if not found:
        hint = "Put pytorch-lightning or lightning, with its version, into requirements.txt."
        yield Finding("Lightning", Status.ERROR, "neither pytorch-lightning nor lightning is installed.", hint)
        return
    named = ", ".join(f"{name} {package.version}" for name, package in found.items())
    if len({package.version for package in found.values()}) > 1:
        text = f"{named}: the namespaces pytorch_lightning and lightning.pytorch are of different versions."
        yield Finding(
            "Lightning", Status.WARNING, text, "Install both in one version, or only the one that you import."
        )
    torch = torch_build(machine)
    for name, package in found.items():
        if torch is not None:
            yield _tested(name, package, torch.version)


def _tested(name: str, package: Package, torch: str) -> Finding:
    lightning, built = version(package.version)[:2], version(torch)[:2]
    text = f"{name} {package.version} with torch {torch}"
    if (lightning, built) in VERIFIED:
        return Finding("Lightning", Status.OK, text)
    older = [each for number, each in VERIFIED if number < lightning]
    same = [each for number, each in VERIFIED if number == lightning]
    newer = [each for number, each in VERIFIED if number > lightning]
    lowest, highest = max(older or same, default=built + (1,)), min(newer, default=max(same, default=(0, 0)))
    if lowest <= built <= highest:
        return Finding("Lightning", Status.OK, f"{text}, between tested pairs")
    tested = ", ".join(
        f"{_numbers(number)} with torch {_numbers(each)}" for number, each in sorted(VERIFIED)[-_MAX_NAMED:]
    )
    hint = "Nothing, if it trains; docs/versions.md has the version that is tested for each image."
    return Finding("Lightning", Status.WARNING, f"{text} is not tested together; the newest tested are {tested}.", hint)


def _numbers(found: Tuple[int, ...]) -> str:
    return ".".join(map(str, found))


def _known_incompatible(machine: Machine) -> Iterator[Finding]:
    """Packages that do not work together, and compromised releases of Lightning (errors)."""
    names = (*_LIGHTNINGS, "jsonargparse")
    found = {name: version(package.version) for name in names for package in [find_package(machine, name)] if package}
    for known in known_incompatibilities(found):
        status = Status.ERROR if known.fatal else Status.WARNING
        yield Finding("versions", status, known.problem, f"Put {known.pin!r} into requirements.txt.")
    tools = find_package(machine, "setuptools")
    lightnings = [found[name] for name in _LIGHTNINGS if name in found]
    if tools is not None and version(tools.version) >= (81,) and any(each[:2] <= (2, 1) for each in lightnings):
        text = f"Lightning up to 2.1 imports pkg_resources, which setuptools {tools.version} no longer has."
        yield Finding("versions", Status.ERROR, text, "Put 'setuptools<81' into requirements.txt.")


def _torch(machine: Machine) -> Iterator[Finding]:
    """Whether the image's torch was replaced; an error if it is built without CUDA and there are GPUs.

    ``SM_DLC_TORCH_VERSION`` is ``torch.__version__`` before ``requirements.txt`` was installed; the training toolkit
    sets it (``sagemaker_pytorch_container/training.py``). Absent under the SDK v3 drivers and in other images.
    """
    found = torch_build(machine)
    if found is None:
        text = "torch is not installed."
        yield Finding("torch", Status.ERROR, text, "Use an AWS PyTorch image, or install torch in your own image.")
        return
    of_image = machine.environ.get("SM_DLC_TORCH_VERSION")
    if of_image and of_image != found.version:
        text = f"the image's torch {of_image} was replaced by {found.version}, which is not built for this image."
        hint = (
            "Find the line of requirements.txt that requires another torch (pip's output names it) and pin a release "
            "that does not, or use an image with that torch."
        )
        yield Finding("torch", Status.WARNING, text, hint)
    seen = gpus(machine)
    if found.cuda is None and seen:
        text = f"torch {found.version} is built without CUDA, and this host has {seen} GPU(s)."
        yield Finding("torch", Status.ERROR, text, "Use the GPU image, or install a torch build for CUDA.")
    else:
        yield Finding("torch", Status.OK, f"{found.version}, {f'CUDA {found.cuda}' if found.cuda else 'CPU only'}")


def _packages_that_fit(machine: Machine) -> Iterator[Finding]:
    """What is built for one torch (torchvision, torchaudio; errors); torchmetrics against Lightning."""
    fits: List[str] = []
    for name in _FITTING:
        package = find_package(machine, name)
        if package is None:
            continue
        unmet = [(needs, text) for needs, text in _unmet(machine, package) if needs in (*_FITTING, "torch")]
        for needs, text in unmet:
            fatal = name in _BUILT_FOR_TORCH and needs == "torch" and not _is_patch(text)
            hint = f"Install the {name} that was built for this torch, or uninstall it." if fatal else ""
            yield Finding(
                name,
                Status.ERROR if fatal else Status.WARNING,
                f"{name} {package.version} requires {text}.",
                hint or "Put versions that fit each other into requirements.txt; leave torch out.",
            )
        if not unmet and name not in _LIGHTNINGS:
            fits.append(f"{name} {package.version}")
    if fits:
        yield Finding("companions of torch", Status.OK, ", ".join(fits))


def _is_patch(text: str) -> bool:
    """Whether wanted and installed version differ in the last number only, which mostly works."""
    wanted, installed = (version(number)[:2] for number in re.findall(r"\d[\d.]*", text + " 0 0")[:2])
    return wanted == installed


def _unmet(machine: Machine, package: Package) -> Iterator[Tuple[str, str]]:
    """Yield what a package requires and does not have: its name, and ``torch ==2.4.1, and 2.5.1 is installed``."""
    for line in package.requires:
        wanted = _parse(line)
        if wanted is None:
            continue
        name, specifier = wanted
        found = find_package(machine, name)
        if found is None:
            yield name, f"{name} {specifier}".strip() + ", which is not installed"
        elif specifier and not _fits(found.version, specifier):
            yield name, f"{name} {specifier}, and {found.version} is installed"


def _parse(line: str) -> Optional[Tuple[str, str]]:
    """Return name and specifier of a requirement that holds here, or ``None``."""
    # pip and every Lightning require it.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            return None
    except (InvalidRequirement, ValueError, AttributeError):  # metadata of old releases, such as torch>=1.7.*
        return None
    return re.sub(r"[-_.]+", "-", wanted.name).lower(), str(wanted.specifier)


def _fits(found: str, specifier: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(found, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _requires_another_torch(machine: Machine) -> Iterator[Finding]:
    """Packages whose next installation would replace torch, such as data libraries that want torchvision.

    Data libraries such as litdata require torchvision, and with it the torch that the newest torchvision wants.
    """
    found: Dict[str, str] = {}
    for package in packages(machine):
        if package.name in (*_FITTING, "torch") or "torch" not in " ".join(package.requires):
            continue
        for needs, text in _unmet(machine, package):
            if needs in ("torch", *_BUILT_FOR_TORCH):
                found[package.name] = text
    if found:
        named = "; ".join(f"{name} requires {text}" for name, text in sorted(found.items())[:_MAX_NAMED])
        hint = "Pin releases that accept the image's torch; `pip install --no-deps` leaves torch alone."
        yield Finding("packages for torch", Status.WARNING, f"{named}: pip would install another torch.", hint)


def _requirements_file(machine: Machine) -> Iterator[Finding]:
    """Lines of ``requirements.txt`` that replace torch, or install another Lightning at each start.

    ``SM_MODULE_DIR`` is the folder of the code, or where it was downloaded from. Set by the training toolkit.
    """
    if not machine.job.in_container:
        return
    base = machine.job.base_dir or "/opt/ml"
    folders = [machine.environ.get("SM_MODULE_DIR") or "", f"{base}/code", f"{base}/input/data/code"]
    texts = [read_text(Path(folder, "requirements.txt")) for folder in folders if folder.startswith("/")]
    text = next((each for each in texts if each is not None), None)
    if text is None:
        return
    problems = list(dict.fromkeys(_judge_requirements(text, machine.environ)))
    left, problems = len(problems) - _MAX_NAMED, problems[:_MAX_NAMED]
    yield from (Finding("requirements.txt", Status.WARNING, problem, hint) for problem, hint in problems)
    if left > 0:
        yield Finding("requirements.txt", Status.WARNING, f"{left} more lines like these.", "Mend each of them.")
    if not problems:
        yield Finding("requirements.txt", Status.OK, f"{len(_lines(text))} lines, none of which is known to do harm")


def _lines(text: str) -> List[str]:
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def _judge_requirements(text: str, environ: Mapping[str, str]) -> Iterator[Tuple[str, str]]:
    of_image = environ.get("SM_DLC_TORCH_VERSION")
    for line in _lines(text):
        wanted = _parse(line)
        if wanted is None:
            continue
        name, specifier = wanted
        if name == "torch" and not (of_image and specifier and _fits(of_image, specifier)):
            image = f"the image's torch {of_image}" if of_image else "the image's torch"
            yield (
                f"{line!r} may replace {image}.",
                "Remove the line: the image brings torch, built for its CUDA and EFA.",
            )
        elif name in (*_BUILT_FOR_TORCH, "litdata") and not specifier:
            needs = (
                "requires torchvision, whose newest release" if name == "litdata" else "names no version; the newest"
            )
            hint = f"Pin the {'torchvision' if name == 'litdata' else name} that was built for the image's torch."
            yield f"{name} {needs} requires its own torch.", hint
        elif name in _LIGHTNINGS and not specifier:
            hint = "Pin it; docs/versions.md has the version for each image."
            yield f"{name} names no version: a restart of the job may install another one.", hint


CHECKS: Tuple[Check, ...] = tuple(
    of_this_host(check)
    for check in (
        _python,
        _lightning,
        _known_incompatible,
        _torch,
        _packages_that_fit,
        _requires_another_torch,
        _requirements_file,
    )
)
