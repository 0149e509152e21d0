"""The command `tarry`."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command; without the libraries it is made of, say what to install."""
    try:
        from tarry.cli.app import app
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in {"typer", "rich"}:
            raise
        sys.stderr.write(f'tarry: the command needs {library}: pip install "tarry[local,local-aws]"\n')
        sys.exit(2)
    except KeyboardInterrupt:  # from now on the app sees to it
        sys.exit(130)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # where a character cannot be shown, its number is
    app()
