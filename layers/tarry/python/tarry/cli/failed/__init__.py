"""`tarry failed`: summarize, show, retry and remove dead letters."""

from tarry.cli.failed.commands import REMOVE_EXAMPLE, SHOW_EXAMPLE, remove, show
from tarry.cli.failed.groups import summary
from tarry.cli.failed.retry import EXAMPLE as RETRY_EXAMPLE
from tarry.cli.failed.retry import retry
from tarry.cli.help import CommandLine

EXAMPLE = """\
tarry failed
tarry failed show --queue orders-dlq
tarry failed retry --queue orders-dlq"""

app = CommandLine(name="failed", no_args_is_help=False, invoke_without_command=True, epilog=EXAMPLE)
app.callback()(summary)
app.command("show", epilog=SHOW_EXAMPLE)(show)
app.command("retry", epilog=RETRY_EXAMPLE)(retry)
app.command("remove", epilog=REMOVE_EXAMPLE)(remove)
