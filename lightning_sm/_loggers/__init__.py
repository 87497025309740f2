"""Loggers of a training job: what they continue after a restart, where it goes, and what a failing server costs."""
