"""The command: ``python -m tools.acceptance --role ARN --bucket B [--dry-run]``."""

import argparse
import json
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from lightning_sm.errors import LaunchError, LightningSMError
from lightning_sm.launch import Account, pack_source
from tools.acceptance.checks import ASPECTS, problems_of
from tools.acceptance.jobs import PROJECT, AcceptanceJob, planned_jobs
from tools.acceptance.seen import Seen
from tools.acceptance.sending import remove, run_job, stop_job

_Results = Dict[str, Tuple[Optional[Seen], Dict[str, Optional[str]]]]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command and return its exit status: 0, or 1 if anything is wrong or could not be sent."""
    import boto3

    given = _parser().parse_args(argv)
    region = given.region or boto3.Session().region_name
    try:
        if not region:
            raise LaunchError("There is no AWS region.", hint="Give --region, or set AWS_REGION.")
        jobs = planned_jobs(given.role, Account(region, given.bucket), f"{datetime.now():%m%d%H%M%S}")
    except LightningSMError as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 1
    jobs = tuple(job for job in jobs if given.jobs is None or job.title in given.jobs)
    if given.dry_run:
        print(json.dumps([job.as_dict() for job in jobs], indent=2))
        return 0
    results = _run(jobs, region)
    print(_table(jobs, results))
    if not given.keep:
        session = boto3.Session(region_name=region)
        for job in jobs:
            seen = results[job.title][0]
            unseen = ["what it made, because it was not seen"]
            for text in remove(job, seen, given.bucket, session) if seen else unseen:
                print(f"{job.title}: not removed: {text}", file=sys.stderr)
    return int(any(any(problems.values()) for _, problems in results.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.acceptance", description=__doc__)
    parser.add_argument("--role", required=True, metavar="ARN", help="the execution role of the jobs")
    parser.add_argument("--bucket", required=True, help="the bucket for source, checkpoints and models")
    parser.add_argument("--region", help="the AWS region; by default that of the AWS configuration")
    parser.add_argument(
        "--jobs", nargs="+", choices=("none", "torchrun", "mpi", "smddp", "spot", "tuning"), help="only these"
    )
    parser.add_argument("--keep", action="store_true", help="remove nothing afterwards")
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent, and what is expected")
    return parser


def _run(jobs: Sequence[AcceptanceJob], region: str) -> _Results:
    """Run all jobs at once; Ctrl-C stops those that have not ended."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, len(jobs))) as threads:
        archive = Path(folder, "sourcedir.tar.gz")
        pack_source(PROJECT, archive)
        running = [(job, threads.submit(_run_one, job, archive, region)) for job in jobs]
        try:
            for _, future in running:
                future.exception()
        except KeyboardInterrupt:
            print("Stopping the jobs; they need some minutes.", file=sys.stderr)
            for job, _ in running:
                stop_job(job, _session(region))
        return {job.title: _result(job, future) for job, future in running}


def _run_one(job: AcceptanceJob, archive: Path, region: str) -> Seen:
    return run_job(job, archive, _session(region), lambda line: print(line, file=sys.stderr, flush=True))


def _session(region: str) -> Any:
    import boto3

    return boto3.Session(region_name=region)


def _result(job: AcceptanceJob, future: "Future[Seen]") -> Tuple[Optional[Seen], Dict[str, Optional[str]]]:
    try:
        seen = future.result()
    except Exception as error:  # whatever it is, the results of the other jobs are paid for
        return None, {aspect: None if aspect != "status" else f"{type(error).__name__}: {error}" for aspect in ASPECTS}
    return seen, problems_of(job.expected, seen)


def _table(jobs: Sequence[AcceptanceJob], results: _Results) -> str:
    """The results as Markdown, with what is wrong below."""
    headings = ["job", "instances", *ASPECTS, "billed"]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    wrong: List[str] = []
    versions = set()
    for job in jobs:
        seen, problems = results[job.title]
        wrong += [f"{job.title}: {aspect}: {text}" for aspect, text in problems.items() if text]
        cells = ["WRONG" if problems[aspect] else "ok" if seen else "-" for aspect in ASPECTS]
        trainings = seen.trainings if seen else ()
        kinds = dict.fromkeys(f"{count} x {kind}" for kind, count in (each.instances for each in trainings))
        billed = sum(each.billable_seconds * each.instances[1] for each in trainings)
        lines.append(f"| {' | '.join([job.title, ', '.join(kinds), *cells, f'{billed} s'])} |")
        for rank in (rank for each in trainings for rank in each.ranks[:1]):
            versions.add(", ".join(f"{name} {version}" for name, version in rank.versions.items()))
    lines += ["", f"{date.today()}; {'; '.join(sorted(versions))}."]
    return "\n".join([*lines, *([""] + wrong if wrong else [])])


if __name__ == "__main__":
    sys.exit(main())
