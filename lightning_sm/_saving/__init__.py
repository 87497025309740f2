"""Checkpoints: how a file comes to stand whole, in the background or not, and which callbacks save when."""
