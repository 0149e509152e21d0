"""`tarry init`: make a project to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tarry.cli.errors import refusals

EXAMPLE = """\
tarry init orders
tarry init"""
CREATED = """\
  template.yaml     a queue, its dead-letter queue, a function, an alarm
  functions/orders  the handler
  events            messages that succeed, are retried, and fail
  tests             with tarry's sandbox, and with moto
  layers/tarry      tarry {version}, for the function's layer and for the tests
  Makefile, README.md, requirements-dev.txt, pyproject.toml, .gitignore"""
NEXT = """\
  make test         # install the tools into .venv, run the tests
  make run          # process the messages in events; delays are skipped"""


def init(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The directory; by default the current one.", show_default=False),
    ] = Path(),
) -> None:
    """Make a project to start from: a queue, a consumer, tests.

    The project contains a copy of tarry, so it needs nothing else that is not on
    pip's index. The template names the version of the Python that runs this
    command. Existing files are never overwritten.

    Exit code: 0 created, 2 a file is in the way or cannot be written.
    """
    from tarry import __version__
    from tarry.scaffold.files import project_files, this_python, write_project

    with refusals():
        write_project(directory, project_files(this_python()))
    typer.echo(f"Created a project in {directory.resolve()}:\n{CREATED.format(version=__version__)}\n\nNext:")
    if directory.resolve() != Path.cwd():
        typer.echo(f"  cd {directory}")
    typer.echo(NEXT)
