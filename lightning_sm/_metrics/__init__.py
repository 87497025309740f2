"""Logged scalars as lines of a job's log, and the metric definitions by which SageMaker finds them there."""
