"""What the functions for both of SageMaker's SDKs share: the request of a job, and a copy of its source."""

import shlex
import tarfile
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from lightning_sm.errors import LaunchError
from lightning_sm.launch._check import job_request_of, line_of
from lightning_sm.launch._refusals import check_request
from lightning_sm.launch._request import Account, JobRequest, default_name
from lightning_sm.launch._send import account_of, clients
from lightning_sm.launch._settings import LaunchSettings, local_channels, settings_of
from lightning_sm.launch._words import hyperparameters_of, read_file

__all__ = ["VALUES_FILE", "SettingsLike", "as_settings", "refuse", "request_of", "staged", "words_of"]

#: The path of a ``launch.yaml``, its content, or settings.
SettingsLike = Union[str, Path, Mapping[str, Any], LaunchSettings]

#: The config file of a staged source, with the values that an SDK cannot send.
VALUES_FILE = "launch_values.yaml"


def request_of(
    settings: SettingsLike, command: Union[str, Sequence[str]], name: Optional[str], account: Optional[Account]
) -> Tuple[JobRequest, Dict[str, Any]]:
    """Return the request that ``launch`` would send, and the hyperparameters before they are encoded.

    Raises:
        LaunchError: The settings contradict each other, or the job could not run.
    """
    made = as_settings(settings)
    given = {**made.hyperparameters, **hyperparameters_of(words_of(command))}
    where = account or account_of(made, clients(made.region))
    refuse("An SDK", {"a local folder as a channel": bool(local_channels(made))})
    named = name or made.name or default_name(made, datetime.now())
    request = job_request_of(made, where, given, named)
    check_request(request)
    if "auto" in made.metrics:
        request = job_request_of(made, where, given, named, line_of(request))
    return request, given


def as_settings(given: SettingsLike) -> LaunchSettings:
    """Read settings."""
    if isinstance(given, LaunchSettings):
        return given
    return settings_of(read_file(str(given)) if isinstance(given, (str, Path)) else given)


def words_of(command: Union[str, Sequence[str]]) -> List[str]:
    """Split a command that is one text."""
    return shlex.split(command) if isinstance(command, str) else list(command)


def staged(settings: LaunchSettings, stage: Union[str, Path], values: Mapping[str, Any]) -> str:
    """Copy the source into a folder as ``launch`` packs it, with a config file for the given values; return the folder.

    Raises:
        LaunchError: The folder is not empty, or the source cannot be packed.
    """
    folder = Path(stage)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LaunchError(f"stage {folder} is there already.", hint="Give a new or an empty folder.")
    with tempfile.TemporaryDirectory() as place:
        from lightning_sm.launch._package import pack_source

        packed = pack_source(Path(settings.source_dir), Path(place, "source.tar.gz"), allowed=settings.allow_files)
        safely: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        with tarfile.open(packed.path) as archive:
            archive.extractall(folder, **safely)
    if values:
        import yaml

        text = yaml.safe_dump(_nested(values), sort_keys=False, allow_unicode=True)
        (folder / VALUES_FILE).write_text(text, encoding="utf-8")
    return str(folder)


def _nested(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Values by dotted keys as a nested config."""
    nested: Dict[str, Any] = {}
    for key in sorted(values, key=lambda key: (key.count("."), not key.endswith(".class_path"))):
        node = nested
        *parents, last = key.split(".")
        for part in parents:
            inner = node.setdefault(part, {})
            node = node[part] = {"class_path": inner} if isinstance(inner, str) else inner
            node = node.setdefault("init_args", {}) if "class_path" in node and last != "class_path" else node
        node[last] = values[key]
    return nested


def refuse(sdk: str, missing: Mapping[str, bool]) -> None:
    """Raise if a setting is wanted that the SDK has no argument for.

    Args:
        sdk: The SDK.
        missing: Whether each is wanted.

    Raises:
        LaunchError: One is.
    """
    found = [what for what, is_wanted in missing.items() if is_wanted]
    if found:
        raise LaunchError(
            f"{sdk} cannot send {', '.join(found)}.",
            hint="Send this job with `lightning-sm launch`, or leave the setting out.",
        )
