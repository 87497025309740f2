"""Checkpoints: written whole or not at all, found again, and complete enough to continue within an epoch."""
