"""Loggers of a training job: what they continue after a restart, and what a failing server costs."""
