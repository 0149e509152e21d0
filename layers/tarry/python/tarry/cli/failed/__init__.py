"""`tarry failed`: show, retry and remove dead letters."""

import typer

from tarry.cli.failed.commands import REMOVE_EXAMPLE, RETRY_EXAMPLE, SHOW_EXAMPLE, remove, retry, show

app = typer.Typer(
    name="failed", no_args_is_help=True, help="Inspect dead letters, send them back to their queues, or remove them."
)
app.command("show", epilog=SHOW_EXAMPLE)(show)
app.command("retry", epilog=RETRY_EXAMPLE)(retry)
app.command("remove", epilog=REMOVE_EXAMPLE)(remove)
