"""Settings of a run: who gave which value, and which values SageMaker decides."""
