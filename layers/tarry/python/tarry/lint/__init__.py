"""The rules of `tarry check`: their code is in `tarry.tools.check`."""
