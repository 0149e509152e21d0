"""Lines for a shell, after which AWS SDKs use the services of `tarry local`."""

from textwrap import wrap

from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import DEFAULT_REGION
from tarry.tools.local.aws.served import description

SHELL_WIDTH = 70
"""The length of a line for a shell, without `export`: it fits into a terminal, so that it can be copied."""


def exports(sqs: str, others: str | None, region: str, width: int | None = SHELL_WIDTH) -> list[str]:
    """Return lines for a shell, after which an AWS SDK uses the services of `tarry local`; one line without a width."""
    found = {"AWS_ENDPOINT_URL_SQS": sqs, "AWS_ENDPOINT_URL": others, "AWS_DEFAULT_REGION": region}
    found |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    given = " ".join(f"{name}={value}" for name, value in found.items() if value)
    lines = wrap(given, width, break_long_words=False, break_on_hyphens=False) if width else [given]
    return [f"export {line}" for line in lines]


def exports_at(endpoint_url: str) -> str:
    """Return the command for a shell after which AWS SDKs use the `tarry local` that runs at a URL.

    Raises:
        UsageError: none runs there.
    """
    about = description(endpoint_url)
    if "queues" not in about:
        raise UsageError(
            f"no tarry local runs at {endpoint_url}: start it, or name its port (tarry local env --port N)"
        )
    return " ".join(exports(endpoint_url, about.get("other_services"), about.get("region", DEFAULT_REGION), width=None))
