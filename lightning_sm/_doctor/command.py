"""``lightning-sm doctor``: examines a container, a laptop or a job's saved files, and prints what it found."""

import argparse
import json
import textwrap
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status, run_checks
from lightning_sm._failure import Redactor
from lightning_sm._version import __version__

__all__ = ["as_json", "as_table", "count", "examine", "exit_code", "run"]

Findings = Mapping[str, Tuple[Finding, ...]]

_WIDTH = 110
_CHECK_WIDTH = 24
# Stable: programs read the JSON. Raised when a key is renamed or removed.
_SCHEMA = 1


def examine(sections: Mapping[str, Sequence[Check]], machine: Machine) -> Findings:
    """Run all checks, and return the findings by section, with secrets masked.

    Args:
        sections: The checks by section.
        machine: What they look at.
    """
    redact = Redactor(machine.job, machine.environ)
    return {
        section: tuple(
            Finding(each.check, each.status, _line(redact(each.text)), _line(redact(each.hint))) for each in found
        )
        for section, found in run_checks(sections, machine).items()
    }


def _line(text: str) -> str:
    return " ".join(text.split())


def count(findings: Findings, status: Status) -> int:
    """Return how many findings have a status."""
    return sum(each.status == status for found in findings.values() for each in found)


def exit_code(findings: Findings, *, strict: bool = False) -> int:
    """Return 1 where there are errors (with ``strict`` also for warnings), else 0."""
    return int(bool(count(findings, Status.ERROR) or (strict and count(findings, Status.WARNING))))


def as_table(findings: Findings, title: str) -> str:
    """Return the findings as a table of plain text.

    Args:
        findings: The findings by section.
        title: The first line.
    """
    lines = [title]
    for section, found in findings.items():
        if found:
            lines += ["", section]
            for each in found:
                lines += _rows(each)
    return "\n".join([*lines, "", summary(findings)])


def summary(findings: Findings) -> str:
    """Return the numbers of findings, such as ``12 ok, 1 warning, no errors``."""
    warnings, errors = count(findings, Status.WARNING), count(findings, Status.ERROR)
    return ", ".join([f"{count(findings, Status.OK)} ok", _counted(warnings, "warning"), _counted(errors, "error")])


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _rows(finding: Finding) -> Iterator[str]:
    head = f"  {finding.status!s:<9}{finding.check:<{_CHECK_WIDTH}} "
    texts = [finding.text, *([f"HINT: {finding.hint}"] if finding.hint else [])]
    rest = _WIDTH - len(head)
    for text in texts:
        for row in textwrap.wrap(text, rest, break_long_words=False, break_on_hyphens=False) or [""]:
            yield (head + row).rstrip()
            head = " " * len(head)


def as_json(findings: Findings, machine: Machine, *, strict: bool = False) -> str:
    """Return the findings as JSON; ``docs/doctor.md`` describes its keys."""
    listed = [
        {"section": section, "check": each.check, "status": each.status.value, "text": each.text, "hint": each.hint}
        for section, found in findings.items()
        for each in found
    ]
    content = {
        "schema": _SCHEMA,
        "lightning_sm": __version__,
        "job": machine.job.name,
        "host": machine.job.current_host,
        "counts": {status.value: count(findings, status) for status in Status},
        "exit_code": exit_code(findings, strict=strict),
        "findings": listed,
    }
    return json.dumps(content, indent=2)


def run(words: Sequence[str], sections: Mapping[str, Sequence[Check]]) -> int:
    """Run the command, and return its exit code: 0 without errors, 1 with errors, 2 for wrong usage.

    Args:
        words: The words behind ``lightning-sm doctor``.
        sections: The checks by section.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-sm doctor",
        description="Examine this machine and job: everything that stops a training, slows it down or loses results.",
        epilog="Exit code: 0 without errors, 1 with errors (--strict: or warnings), 2 for wrong usage.",
    )
    parser.add_argument(
        "--config-dir", metavar="PATH", help="a saved copy of /opt/ml/input/config of another machine, examined instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings, too")
    given = parser.parse_args(words)
    machine = Machine.read(config_dir=given.config_dir)
    if given.config_dir is not None and not (machine.job.in_container or machine.problems):
        parser.error(f"{given.config_dir} holds no resourceconfig.json, which SageMaker writes to /opt/ml/input/config")
    findings = examine(sections, machine)
    print(as_json(findings, machine, strict=given.strict) if given.json else as_table(findings, _title(machine)))
    return exit_code(findings, strict=given.strict)


def _title(machine: Machine) -> str:
    job = machine.job
    if not (job.in_container or machine.problems):
        place: Optional[str] = "this machine, which is no SageMaker training container"
    else:
        named: List[str] = [text for text in (job.name and f"job {job.name}", job.current_host) if text]
        place = ", ".join(named) or "a training job without a name"
    return f"lightning-sm doctor {__version__}: {place}"
