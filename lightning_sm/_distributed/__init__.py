"""The cluster environment and the strategy that Lightning is given."""
