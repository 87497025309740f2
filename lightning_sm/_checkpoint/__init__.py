"""Checkpoints: saving them whole, finding and checking them, and choosing one to resume from."""
