"""The position within an epoch, and what each rank needs to continue from it."""
