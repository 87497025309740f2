"""``lightning-sm doctor``: examines this host and its job, or a project before its job is sent, and prints a table."""

import argparse
import json
import textwrap
from typing import Any, Dict, Iterator, Sequence, Tuple

from lightning_sm._doctor import CHECKS, Finding, Machine, count_findings, examine, name_of
from lightning_sm._version import __version__
from lightning_sm.errors import LightningSMError

__all__ = ["main"]

_WIDTH = 110
_CHECK_WIDTH = 22
# Programs read the JSON. Raised when a key is renamed or removed.
_SCHEMA = 1


def main(args: Sequence[str]) -> int:
    """Run the command, and return its exit code: 0 without errors, 1 with errors, 2 for wrong usage.

    Args:
        args: The arguments behind ``lightning-sm doctor``.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-sm doctor",
        usage="%(prog)s [--json] [--strict] [--source-dir PATH [option of launch ...] [argument of the script ...]]",
        description="Examine this host and its job for what fails late, silently or on another host only; with "
        "--source-dir a project as lightning-sm launch does before it sends its job.",
        epilog="Exit code: 0 without errors, 1 with errors (--strict: or warnings), 2 for wrong usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings, too")
    parser.add_argument("--source-dir", metavar="PATH", help="the folder of a project, examined instead of this host")
    checks: Tuple[str, ...] = ()
    content: Dict[str, Any] = {"schema": _SCHEMA, "lightning_sm": __version__}
    if any(word.partition("=")[0] == "--source-dir" for word in args):
        from lightning_sm.launch import check_arguments

        try:
            found, options = check_arguments(args)
        except LightningSMError as error:
            parser.error(str(error))
        findings, is_json, is_strict = tuple(found), options["json"], options["strict"]
        place = f"the project {options['source_dir']}"
    else:
        given, of_project = parser.parse_known_args(args)
        if of_project:
            parser.error(f"{of_project[0]} needs --source-dir")
        is_json, is_strict, machine = given.json, given.strict, Machine.read()
        checks, findings = tuple(map(name_of, CHECKS)), examine(CHECKS, machine)
        place = _place(machine)
        content.update(job=machine.job.name, host=machine.job.current_host)
    code = int(any(each.is_error or is_strict for each in findings))
    if is_json:
        listed = [
            {"check": each.check, "status": each.status, "text": each.text, "hint": each.hint} for each in findings
        ]
        content.update(exit_code=code, checks=checks, findings=listed)
        print(json.dumps(content, indent=2))
    else:
        print("\n".join(_lines(f"lightning-sm doctor {__version__}: {place}", checks, findings)))
    return code


def _place(machine: Machine) -> str:
    job = machine.job
    if not (job.in_container or machine.problem):
        return "this machine, which is no SageMaker training container"
    return ", ".join(text for text in (job.name and f"job {job.name}", job.current_host) if text) or "a training job"


def _lines(title: str, checks: Sequence[str], findings: Sequence[Finding]) -> Iterator[str]:
    yield f"{title}\n"
    for each in findings:
        yield from _rows(f"  {each.status:<9}{each.check:<{_CHECK_WIDTH}} ", each.text, f"HINT: {each.hint}")
    wrong = {each.check for each in findings}
    good = ", ".join(name for name in checks if name not in wrong)
    if good:
        yield from _rows("  ok       ", good)
    yield f"\n{count_findings(findings)}"


def _rows(head: str, *texts: str) -> Iterator[str]:
    for text in texts:
        for row in textwrap.wrap(text, _WIDTH - len(head), break_long_words=False, break_on_hyphens=False):
            yield head + row
            head = " " * len(head)
