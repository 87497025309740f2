"""The console script ``lightning-sm``: ``lightning-sm fit …`` is ``python -m lightning_sm.cli fit …``."""

import sys
from typing import Optional, Sequence

__all__ = ["main"]


def main(args: Optional[Sequence[str]] = None) -> Optional[int]:
    """Run the command that the first word names; every word that names no other room goes to the CLI."""
    words = list(sys.argv[1:] if args is None else args)
    if words[:1] == ["rehearse"]:
        from lightning_sm.rehearse import main as rehearse

        return rehearse(words[1:])
    if words[:1] == ["entrypoint"]:
        from lightning_sm._entrypoint import main as entrypoint

        return entrypoint(words[1:])
    from lightning_sm.cli import main as cli

    cli(words)
    return None


if __name__ == "__main__":
    sys.exit(main())
