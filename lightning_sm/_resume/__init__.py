"""A fit's own saves: what they hold, how they are written and read, and which of them a restarted program continues."""
