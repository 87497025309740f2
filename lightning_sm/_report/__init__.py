"""The report of a fit: curves, the job's settings, versions, restarts and the outcome, as one page that opens offline.

``history`` records the curves with a bounded number of points; ``report`` is the value; ``page`` makes the page,
with figures in SVG (``figures``), and ``writer`` writes it.
"""

from lightning_sm._report.history import Attempt, Curve, History, Kind
from lightning_sm._report.report import Outcome, Report, rows_of_export, rows_of_job, rows_of_topology, rows_of_versions
from lightning_sm._report.writer import ReportWriter, version_of_file, warn

__all__ = [
    "Attempt",
    "Curve",
    "History",
    "Kind",
    "Outcome",
    "Report",
    "ReportWriter",
    "rows_of_export",
    "rows_of_job",
    "rows_of_topology",
    "rows_of_versions",
    "version_of_file",
    "warn",
]
