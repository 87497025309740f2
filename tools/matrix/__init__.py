"""The version matrix: ``python -m tools.matrix`` runs the suite on each supported Lightning."""
