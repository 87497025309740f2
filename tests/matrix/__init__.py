"""The version matrix: ``python -m tests.matrix`` runs the suite on each supported Lightning."""
