"""How far a run is and how fast: rates that callbacks measure, progress lines, and the watch for a run that hangs."""

from lightning_sm._progress.rates import RatePoint, Rates, RecordsRates, StepRates
from lightning_sm._progress.writer import ProgressWriter

__all__ = ["ProgressWriter", "RatePoint", "Rates", "RecordsRates", "StepRates"]
