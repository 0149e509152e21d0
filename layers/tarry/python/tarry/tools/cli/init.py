"""`tarry init`: make a project to start from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tarry.tools.cli.errors import refusals
from tarry.tools.cli.options import argument

if TYPE_CHECKING:
    from tarry.tools.scaffold.files import ProjectNames

EXAMPLE = """\
tarry init orders
tarry init"""
NEXT = """\
  make test         # install the tools into .venv, run the tests
  make run          # process the messages in events; delays are skipped"""


def init(
    directory: Path = argument("DIR", "The directory; by default the current one.", Path()),
) -> None:
    """Make a project to start from: a queue, a consumer, tests.

    The name of the directory becomes the name of the queue and of the function.

    The project contains a copy of tarry, so it needs nothing else that is not on
    pip's index. The template names the version of the Python that runs this
    command. Existing files are never overwritten.

    Exit code: 0 created, 2 a file is in the way or cannot be written.
    """
    from tarry.tools.scaffold.files import names_of, project_files, this_python, write_project

    folder = directory.resolve()
    names = names_of(folder.name)
    with refusals():
        write_project(directory, project_files(names, this_python()))
    typer.echo(f"Created a project in {folder}:\n{_contents(names)}\n\nNext:")
    if folder != Path.cwd():
        typer.echo(f"  cd {directory}")
    typer.echo(NEXT)


def _contents(names: ProjectNames) -> str:
    from tarry import __version__

    function = f"functions/{names.module}"
    rows = {
        "template.yaml": f"queue {names.queue}, its dead-letter queue, function and alarms",
        function: "the handler",
        "events": "messages that succeed, are retried, and fail",
        "tests": "with tarry's sandbox, and with moto",
        "layers/tarry": f"tarry {__version__}, for the function's layer and for the tests",
    }
    lines = [f"  {name:{len(function)}}  {text}" for name, text in rows.items()]
    others = ["Makefile, README.md, samconfig.toml, pyproject.toml,", "requirements-dev.txt, rehearse.sh, .gitignore"]
    return "\n".join([*lines, *(f"  {line}" for line in others)])
