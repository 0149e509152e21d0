"""The Typer app of the `tarry` command."""

import typer

from tarry.cli import failed, invoke, local, queues, send

app = typer.Typer(
    name="tarry",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def tarry() -> None:
    """Run, test and operate SQS consumers on AWS Lambda."""


app.command("local", epilog=local.EXAMPLE)(local.local)
app.command("invoke", epilog=invoke.EXAMPLE)(invoke.invoke)
app.add_typer(failed.app)
app.command("send", epilog=send.EXAMPLE)(send.send)
app.command("queues", epilog=queues.EXAMPLE)(queues.queues)
