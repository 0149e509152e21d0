"""`tarry failed`: show, retry, remove and restore dead letters."""

from tarry.cli.failed.commands import EXAMPLE, REMOVE_EXAMPLE, RETRY_EXAMPLE, SHOW_EXAMPLE, remove, retry, show
from tarry.cli.failed.restoring import RESTORE_EXAMPLE, restore
from tarry.cli.help import CommandLine

app = CommandLine(
    name="failed",
    help="""Inspect dead letters, send them back to their queues, remove and
    restore them.

    The queues are those of AWS. For those of `tarry local`, which `tarry send` and
    `tarry queues` use by default, give --endpoint-url http://127.0.0.1:4576.""",
    epilog=EXAMPLE,
)
app.command("show", epilog=SHOW_EXAMPLE)(show)
app.command("retry", epilog=RETRY_EXAMPLE)(retry)
app.command("remove", epilog=REMOVE_EXAMPLE)(remove)
app.command("restore", epilog=RESTORE_EXAMPLE)(restore)
