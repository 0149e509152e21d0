"""The Typer app of the `tarry` command."""

import typer

from tarry import __version__
from tarry.tools.cli import check, console, failed, init, invoke, local, pause, plan, queues, send, story
from tarry.tools.cli.help import CommandLine
from tarry.tools.cli.options import option

EXAMPLE = """\
tarry init orders
tarry local --watch
tarry send orders '{"id": 1}'
tarry failed show --queue orders-dlq
tarry story 5f3a2b1c --stack shop-prod"""

app = CommandLine(name="tarry", epilog=EXAMPLE)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tarry {__version__}")
        raise typer.Exit


@app.callback()
def tarry(
    version: bool = option("--version", "Print the version and exit.", False, callback=_print_version, is_eager=True),
) -> None:
    """Run, test and operate SQS consumers on AWS Lambda."""


app.command("init", epilog=init.EXAMPLE)(init.init)
app.command("local", epilog=local.EXAMPLE)(local.local)
app.command("invoke", epilog=invoke.EXAMPLE)(invoke.invoke)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("plan", epilog=plan.EXAMPLE)(plan.plan)
app.add_typer(failed.app)
app.command("console", epilog=console.EXAMPLE)(console.console)
app.command("send", epilog=send.EXAMPLE)(send.send)
app.command("queues", epilog=queues.EXAMPLE)(queues.queues)
app.command("story", epilog=story.EXAMPLE)(story.story)
app.command("pause", epilog=pause.PAUSE_EXAMPLE)(pause.pause)
app.command("resume", epilog=pause.RESUME_EXAMPLE)(pause.resume)
