"""``lightning-sm entrypoint``: a container entry point that forwards SIGTERM to the training processes."""

import argparse
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

__all__ = ["DLC_COMMAND", "TOOLKIT_COMMAND", "Entrypoint", "main", "make_entrypoint"]

_SCRIPT = Path(__file__).with_name("entrypoint.sh")

#: The command of a training image: the toolkit's, and the wrapper that AWS's Deep Learning Containers add.
TOOLKIT_COMMAND = ("train",)
DLC_COMMAND = ("bash", "-m", "start_with_right_hostname.sh", "train")

_EPILOG = """StopTrainingJob, a time limit and the end of a spot instance reach process 1 of the container as
SIGTERM. The toolkit does not forward it, and the job is killed 120 seconds later. This entry point forwards it to the
training processes, in which lightning-sm saves a checkpoint and exports the model. It also exits with an error if there
is a failure reason and the toolkit reports success.

example:
  Estimator(..., **json.loads(subprocess.check_output(["lightning-sm", "entrypoint", "--format", "estimator"])))"""


@dataclass(frozen=True)
class Entrypoint:
    """The command of a container.

    Args:
        entrypoint: The strings of ``ContainerEntrypoint``.
        arguments: The strings of ``ContainerArguments``: the lines of a bash script, because the service accepts at
            most 256 characters for each string and no line breaks.
    """

    entrypoint: Tuple[str, ...]
    arguments: Tuple[str, ...]

    def as_request(self) -> Dict[str, List[str]]:
        """For ``AlgorithmSpecification`` of a CreateTrainingJob request."""
        return {"ContainerEntrypoint": list(self.entrypoint), "ContainerArguments": list(self.arguments)}

    def as_estimator(self) -> Dict[str, List[str]]:
        """For an estimator of SageMaker's SDK v2."""
        return {"container_entry_point": list(self.entrypoint), "container_arguments": list(self.arguments)}


def make_entrypoint(command: Sequence[str] = TOOLKIT_COMMAND) -> Entrypoint:
    """Make the entry point for a container.

    Args:
        command: The command that the container is started with otherwise.
    """
    lines = (line.strip() for line in _SCRIPT.read_text(encoding="utf-8").splitlines())
    script = tuple(
        line.replace("@COMMAND@", " ".join(shlex.quote(word) for word in command))
        for line in lines
        if line and not line.startswith("#")
    )
    return Entrypoint(("/bin/bash", "-c", "IFS=$'\\n'; eval \"$*\"", "lightning-sm"), script)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="lightning-sm entrypoint",
        description="Print a container entry point that forwards SIGTERM, so that a training stops in time.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--format",
        choices=("request", "estimator", "script"),
        default="request",
        help="request: JSON for AlgorithmSpecification of CreateTrainingJob (default); estimator: JSON of arguments of "
        "an estimator of SDK v2; script: the bash script itself",
    )
    parser.add_argument(
        "--dlc",
        action="store_true",
        help="start what AWS's Deep Learning Containers start: " + " ".join(DLC_COMMAND),
    )
    parser.add_argument("command", nargs="*", help="the container's own command, after -- (default: train)")
    options = parser.parse_args(argv)
    if options.dlc and options.command:
        parser.error("--dlc and a command exclude each other")
    made = make_entrypoint(DLC_COMMAND if options.dlc else options.command or TOOLKIT_COMMAND)
    if options.format == "script":
        print("\n".join(made.arguments))
    else:
        print(json.dumps(made.as_request() if options.format == "request" else made.as_estimator(), indent=2))
    return 0
