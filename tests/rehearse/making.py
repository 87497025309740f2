"""Requests from command lines, for the tests of values."""

from pathlib import Path

from lightning_sm.rehearse import RehearsalRequest
from lightning_sm.rehearse._arguments import read_arguments
from lightning_sm.rehearse._from_options import request_from_options


def request(source: Path, *arguments: object) -> RehearsalRequest:
    return request_from_options(read_arguments(["--source-dir", str(source), *map(str, arguments)]))
