"""`tarry failed`: summarize, show, retry, remove and restore dead letters."""

from tarry.tools.cli.failed.remove import EXAMPLE as REMOVE_EXAMPLE
from tarry.tools.cli.failed.remove import RESTORE_EXAMPLE, remove, restore
from tarry.tools.cli.failed.retry import EXAMPLE as RETRY_EXAMPLE
from tarry.tools.cli.failed.retry import retry
from tarry.tools.cli.failed.show import EXAMPLE as SHOW_EXAMPLE
from tarry.tools.cli.failed.show import show, summary
from tarry.tools.cli.help import CommandLine

EXAMPLE = """\
tarry failed
tarry failed show --queue orders-dlq
tarry failed retry --queue orders-dlq"""

app = CommandLine(name="failed", no_args_is_help=False, invoke_without_command=True, epilog=EXAMPLE)
app.callback()(summary)
app.command("show", epilog=SHOW_EXAMPLE)(show)
app.command("retry", epilog=RETRY_EXAMPLE)(retry)
app.command("remove", epilog=REMOVE_EXAMPLE)(remove)
app.command("restore", epilog=RESTORE_EXAMPLE)(restore)
