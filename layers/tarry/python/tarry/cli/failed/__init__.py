"""`tarry failed`: show, retry and remove dead letters."""

from tarry.cli.failed.commands import EXAMPLE, REMOVE_EXAMPLE, RETRY_EXAMPLE, SHOW_EXAMPLE, remove, retry, show
from tarry.cli.help import CommandLine

app = CommandLine(
    name="failed", help="Inspect dead letters, send them back to their queues, or remove them.", epilog=EXAMPLE
)
app.command("show", epilog=SHOW_EXAMPLE)(show)
app.command("retry", epilog=RETRY_EXAMPLE)(retry)
app.command("remove", epilog=REMOVE_EXAMPLE)(remove)
