"""AWS's training images by short names, such as ``pytorch-2.8-gpu``, and what they hold (``images.json``)."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional

from lightning_sm.errors import LaunchError

__all__ = ["Image", "find_image"]

_DATA: Dict[str, Any] = json.loads(Path(__file__).with_name("images.json").read_text(encoding="utf-8"))
_SHORT = re.compile(r"pytorch-(?P<version>\d+\.\d+(?:\.\d+)?)-(?P<processor>cpu|gpu)")
_TAG = re.compile(r"/pytorch-training:(?P<version>\d+\.\d+(?:\.\d+)?)-(?P<processor>cpu|gpu)(?:-py(?P<python>\d+))?")


@dataclass(frozen=True)
class Image:
    """A training image.

    Args:
        uri: Its address in a registry.
        is_aws: Whether it is one of AWS's PyTorch training images.
        processor: ``cpu`` or ``gpu``, where that is known.
        has_smddp: Whether it holds AWS's SMDDP library, where that is known.
        torch: The version of torch in it, where that is known.
        python: The version of Python in it, such as ``3.12``, where that is known.

    Source: ``images.json`` beside this module, which names its sources.
    """

    uri: str
    is_aws: bool = False
    processor: Optional[str] = None
    has_smddp: Optional[bool] = None
    torch: Optional[str] = None
    python: Optional[str] = None


def find_image(name: str, region: str) -> Image:
    """Return the image that a short name or an address means.

    Args:
        name: A short name such as ``pytorch-2.8-gpu`` or ``pytorch-2.5.1-cpu``, or the address of any image.
        region: The region of the job, whose registry AWS's images come from.

    Raises:
        LaunchError: There is no such image, or AWS has none in that region.

    Example::

        >>> find_image("pytorch-2.8-gpu", "us-east-1").uri
        '763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312'
        >>> find_image("123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1", "us-east-1").is_aws
        False
    """
    short = _SHORT.fullmatch(name)
    if short is not None:
        account = _DATA["regions"].get(region)
        version = _full(short["version"])
        if account is None:
            raise LaunchError(
                f"AWS's training images are not known for the region {region!r}.", hint="Give the address of an image."
            )
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        python = _DATA["versions"].get(version, {}).get("python")
        registry = f"{account}.dkr.ecr.{region}.{suffix}/{_DATA['repository']}"
        name = f"{registry}:{version}-{short['processor']}-{python}" if python else name
    if "/" not in name:
        names = ", ".join(f"pytorch-{each}-gpu" for each in list(_DATA["versions"])[-4:])
        raise LaunchError(
            f"--image is {name!r}, which is no image of AWS that is known here.",
            hint=f"Use one such as {names}, or the address of an image.",
        )
    tag = _TAG.search(name)
    if tag is None:
        return Image(name)
    version = _full(tag["version"])
    known = _DATA["versions"].get(version, {})
    digits = (known.get("python") or tag["python"] or "").replace("py", "")
    has_smddp = known["smddp"] and tag["processor"] == "gpu" if known else None
    return Image(name, True, tag["processor"], has_smddp, version, f"{digits[0]}.{digits[1:]}" if digits else None)


def _full(version: str) -> str:
    """The newest release of a version of two numbers."""
    same = [each for each in _DATA["versions"] if each == version or each.startswith(f"{version}.")]
    return same[-1] if same else version
