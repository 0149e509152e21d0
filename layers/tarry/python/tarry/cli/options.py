"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Template = Annotated[Path, typer.Option("--template", "-t", metavar="FILE", help="The SAM template.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A template parameter's value; repeatable."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="FILE|NAME=VALUE", help="Environment variables that go before the template's; repeatable."
    ),
]
EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        metavar="URL",
        help="Another SQS than that of tarry local (http://127.0.0.1:4576); AWS_ENDPOINT_URL_SQS and AWS_ENDPOINT_URL "
        "say it too.",
        show_default=False,
    ),
]
Aws = Annotated[bool, typer.Option("--aws", help="AWS itself, with your usual AWS settings.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def pairs(given: list[str]) -> dict[str, str]:
    """The values of ``--parameter``."""
    for each in given:
        if "=" not in each:
            raise typer.BadParameter(f"--parameter takes NAME=VALUE, got {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}
