"""The form of progress lines, for tests that read logs."""

import re

__all__ = ["FORBIDDEN", "progress_lines"]

# What a progress bar writes: carriage returns, control sequences, block characters.
FORBIDDEN = re.compile("\r|\x1b\\[|[\u2580-\u259f]")
_STAGES = "fit|train|sanity check|validation|test|predict"
_LINE = re.compile(
    rf"progress (?P<stage>{_STAGES})(?P<event> end| interrupted|): (?P<words>[^|]*?)(?: \| (?P<metrics>.*))?"
)
_HANG = re.compile(rf"progress ({_STAGES}) (hang: no batch for|goes on: after) seconds=\d+ .*rank=\d+ of \d+.*")
_WORDS = {
    "epoch": r"\d+(/\d+)?",
    "batch": r"\d+(/\d+)?",
    "percent": r"\d{1,3}",
    "step": r"\d+",
    "samples": r"\d+",
    "samples/s": r"[\d.]+",
    "batches/s": r"[\d.]+",
    "step_time": r"[\d.]+ms",
    "data_wait": r"\d{1,3}%",
    "gpu_memory": r"[\d.]+/[\d.]+GiB",
    "time": r"\d+:\d\d:\d\d",
    "eta_epoch": r"\d+:\d\d:\d\d",
    "eta_fit": r"\d+:\d\d:\d\d",
    "reason": r"\w+",
}


def progress_lines(lines):
    """Each progress line as its stage with event, a dict of its words, and its metrics; another form is an error."""
    found = []
    for line in lines:
        start = line.find("progress ")
        if start < 0 or _HANG.search(line):
            continue
        match = _LINE.fullmatch(line[start:])
        if match is None:
            continue
        words = dict(word.split("=", 1) for word in match["words"].split())
        for name, value in words.items():
            assert re.fullmatch(_WORDS[name], value), line
        assert len(line) < 4000
        found.append((match["stage"] + match["event"], words, match["metrics"] or ""))
    return found
