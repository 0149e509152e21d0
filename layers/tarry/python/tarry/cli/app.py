"""The Typer app of the `tarry` command."""

from tarry.cli import failed, invoke, local, queues, send
from tarry.cli.help import CommandLine

EXAMPLE = """\
tarry local --watch
tarry send orders '{"id": 1}'
tarry failed show --queue orders-dlq"""

app = CommandLine(name="tarry", epilog=EXAMPLE)


@app.callback()
def tarry() -> None:
    """Run, test and operate SQS consumers on AWS Lambda."""


app.command("local", epilog=local.EXAMPLE)(local.local)
app.command("invoke", epilog=invoke.EXAMPLE)(invoke.invoke)
app.add_typer(failed.app)
app.command("send", epilog=send.EXAMPLE)(send.send)
app.command("queues", epilog=queues.EXAMPLE)(queues.queues)
