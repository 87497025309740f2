"""Settings of a run: the values that it was given with their provenance, and the values that SageMaker determines."""
