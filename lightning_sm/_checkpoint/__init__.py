"""Checkpoints: saving them atomically, choosing one to resume from, and the state to resume within an epoch."""
