"""What a job's failure file says."""

from lightning_sm._failure import report_noted

__all__ = ["reason"]


def reason(job):
    """The failure file, as if the program now ended because of an error that it had."""
    report_noted()
    with open(job.failure_file, encoding="utf-8") as file:
        return file.read()
