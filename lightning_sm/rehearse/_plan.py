"""What the stage is told: the request, where it is played, and the variables of the containers."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from ._checks import container_path
from ._container_files import container_environment
from ._netns import INTERFACE, addresses
from ._request import Channel, RehearsalRequest
from ._tree import Tree

__all__ = ["Plan", "make_plan"]

#: Where a namespaced host finds what a container would fetch from S3.
SHARED = "/opt/rehearsal"

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Plan:
    """A request on a stage. Both are values, so the stage's process can be handed it as a file."""

    request: RehearsalRequest
    isolation: str
    environment: Tuple[Tuple[str, str], ...]
    home: str
    stream: str = "stdout"

    @property
    def namespaced(self) -> bool:
        """Whether hosts have a root directory of their own."""
        return self.isolation != "loopback"

    @property
    def interface(self) -> str:
        """The network interface that the files name."""
        return INTERFACE if self.namespaced else LOOPBACK

    @property
    def addresses(self) -> Dict[str, str]:
        """The address of each host."""
        hosts = self.request.hosts
        return addresses(hosts) if self.namespaced else {host: host for host in hosts}

    def base(self, tree: Tree, host: str) -> str:
        """What ``host`` calls its ``/opt/ml``."""
        return "/opt/ml" if self.namespaced else str(tree.ml(host))

    def variables(self, tree: Tree, host: str) -> Dict[str, str]:
        """The whole environment of the container ``host``."""
        moved = {} if self.namespaced else {"SAGEMAKER_BASE_DIR": str(tree.ml(host))}
        return {**moved, **dict(self.environment)}


def make_plan(request: RehearsalRequest, isolation: str, variables: Mapping[str, str], tree: Tree, stream: str) -> Plan:
    """Put a request on a stage: names that the stage can have, an archive where its hosts can read it."""
    namespaced = isolation != "loopback"
    if not namespaced:
        names = {host: f"127.0.0.{number}" for number, host in enumerate(_in_order(request), start=1)}
        request = request.with_hosts(names)
    if request.sdk == "v3" and request.code is not None:
        brought = (Channel("code", str(request.code)), Channel("sm_drivers", str(tree.drivers)))
        request = dataclasses.replace(request, channels=(*request.channels, *brought))
    if tree.archive.exists():
        archive = f"{SHARED}/{tree.archive.name}" if namespaced else str(tree.archive)
        request = request.with_hyperparameters({"sagemaker_submit_directory": f'"{archive}"'})
    home = "/root" if isolation == "netns" else variables.get("HOME", "/")
    environment = container_environment(request, variables, home=home)
    environment["PATH"] = container_path(request, variables, tree.python if tree.python.exists() else None)
    if not namespaced and "TMPDIR" in variables and "TMPDIR" not in environment:
        environment["TMPDIR"] = variables["TMPDIR"]
    return Plan(request, isolation, tuple(environment.items()), home, stream)


def _in_order(request: RehearsalRequest) -> Tuple[str, ...]:
    """Hosts by number, so that the order of the names is kept where it can be."""
    return tuple(sorted(request.hosts, key=lambda host: int(host.rpartition("-")[2])))
