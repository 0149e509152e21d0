"""`tarry failed`: dead letters shown, sent back, removed."""

import typer

from tarry.cli.failed.commands import REMOVE_EXAMPLE, RETRY_EXAMPLE, SHOW_EXAMPLE, remove, retry, show

app = typer.Typer(name="failed", no_args_is_help=True, help="Dead letters: why they died; send them back, remove them.")
app.command("show", epilog=SHOW_EXAMPLE)(show)
app.command("retry", epilog=RETRY_EXAMPLE)(retry)
app.command("remove", epilog=REMOVE_EXAMPLE)(remove)
