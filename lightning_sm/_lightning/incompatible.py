"""Pairs of versions that are known not to work, each with the pin that cures it."""

import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._logging import log
from lightning_sm.errors import LightningSMError

__all__ = ["VERIFIED", "Fault", "check_before_import", "explain_failed_import", "known_faults", "tell_unverified"]

Version = Tuple[int, ...]

# Lightning and torch of each row of the version matrix, as major and minor.
VERIFIED = frozenset(
    {
        ((1, 5), (1, 12)),
        ((1, 6), (1, 12)),
        ((1, 7), (1, 12)),
        ((1, 8), (1, 13)),
        ((1, 9), (1, 13)),
        ((2, 0), (2, 0)),
        ((2, 1), (2, 1)),
        ((2, 4), (2, 4)),
        ((2, 5), (2, 8)),
        ((2, 6), (2, 13)),
        ((2, 6), (2, 15)),
    }
)


@dataclass(frozen=True)
class Fault:
    """A pair of versions that does not work.

    Args:
        problem: What happens.
        pin: The requirement that cures it.
        fatal: Whether Lightning must not be imported at all.
    """

    problem: str
    pin: str
    fatal: bool = False


def known_faults(versions: Mapping[str, Version]) -> List[Fault]:
    """Return the faults of a set of installed packages.

    Args:
        versions: The version of each package by its name on the package index; absent ones are left out.
    """
    faults: List[Fault] = []
    for package in ("lightning", "pytorch-lightning"):
        if versions.get(package) in ((2, 6, 2), (2, 6, 3)):
            # https://github.com/Lightning-AI/pytorch-lightning/issues/21691
            problem = f"{package} 2.6.2 and 2.6.3 are compromised releases."
            faults.append(Fault(problem, f"{package}!=2.6.2,!=2.6.3", fatal=True))
    lightning = versions.get("pytorch-lightning", versions.get("lightning", ()))
    parser = versions.get("jsonargparse")
    if lightning and parser is not None and lightning < (1, 7) and (parser >= (4, 22) or (4, 6) <= parser < (4, 9)):
        problem = f"Lightning's CLI before 1.7 does not work with jsonargparse {_text(parser)}."
        faults.append(Fault(problem, "jsonargparse[signatures]==4.21.0"))
    if lightning[:2] == (1, 7) and versions.get("torchmetrics", ()) >= (1,):
        faults.append(Fault("Lightning 1.7 cannot be imported beside torchmetrics 1 and later.", "torchmetrics<1"))
    return faults


def check_before_import(namespace: Namespace) -> None:
    """Refuse or warn before a Lightning is imported that is known not to work here.

    Raises:
        LightningSMError: The installed release is compromised; its code has not been run.
    """
    for fault in known_faults(_installed()):
        if fault.fatal:
            raise LightningSMError(
                f"{namespace.name} is not imported: {fault.problem}", hint=f"Put {fault.pin!r} into requirements.txt."
            )
        log.warning("%s HINT: Put %r into requirements.txt.", fault.problem, fault.pin)


def explain_failed_import(error: Exception) -> Optional[LightningSMError]:
    """Return a better error for an import of Lightning that failed for a known reason."""
    text = str(error)
    if "pkg_resources" in text:
        problem, pin = "Lightning up to 2.1 imports pkg_resources, which setuptools no longer has.", "setuptools<81"
    elif "torchvision::" in text:
        problem = "The installed torchvision cannot load beside this torch, and torchmetrics imports it."
        pin = "the torchvision that was built for this torch, or none"
    else:
        return None
    return LightningSMError(f"Lightning cannot be imported ({text}). {problem}", hint=f"Install {pin}.")


def tell_unverified(namespace: Namespace) -> None:
    """Write one debug line where Lightning and torch are a pair that nobody has tried with this package."""
    import torch

    pair = (namespace.version, _version(str(torch.__version__))[:2])
    if pair not in VERIFIED:
        log.debug("%s %s with torch %s is no verified pair.", namespace.name, _text(pair[0]), _text(pair[1]))


def _installed() -> Mapping[str, Version]:
    # Loaded here, because it takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("lightning", "pytorch-lightning", "jsonargparse", "torchmetrics"):
        try:
            found[package] = _version(str(version(package)))  # None where its metadata is damaged
        except PackageNotFoundError:
            continue
    return found


def _version(text: str) -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def _text(version: Version) -> str:
    return ".".join(map(str, version))
