"""Settings of a run: the order on its line decides, then SageMaker sets what nobody has set for this run."""
