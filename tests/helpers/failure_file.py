"""What a job's failure file says."""

__all__ = ["reason"]


def reason(job):
    with open(job.failure_file, encoding="utf-8") as file:
        return file.read()
