"""The command `tarry`."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command, or report the library that must be installed first."""
    if sys.argv[1:] == ["--version"]:  # without its libraries: fast, and also where they are not installed
        from tarry import __version__

        sys.stdout.write(f"tarry {__version__}\n")
        return
    try:
        from tarry.tools.cli.app import app
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in {"typer", "rich"}:
            raise
        from tarry.tools.common.installation import install_command

        command = install_command("cli")
        sys.stderr.write(f"tarry: the command needs {library}; install it with: {command}\n")
        sys.exit(2)
    except KeyboardInterrupt:  # from here on, the commands handle it
        sys.exit(130)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape characters that the encoding does not have
    app()
