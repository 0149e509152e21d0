"""The command `tarry`: its code is in `tarry.tools.cli`."""

from tarry.tools.cli import main

__all__ = ["main"]
