"""What queue URLs, ARNs and endpoint URLs say: names, regions, hosts."""

from urllib.parse import urlsplit

from tarry.support.arn import queue_arn
from tarry.tooling.errors import UsageError


def queue_name(name_url_or_arn: str) -> str:
    """Return the name of a queue that is given by its name, URL or ARN."""
    arn = queue_arn(name_url_or_arn)
    return arn.name or name_url_or_arn.rpartition("/")[2].rpartition(":")[2]


def region_of(arn: str) -> str:
    """Return the region of an ARN, of a queue or of a function."""
    return arn.split(":")[3]


def endpoint_host(url: str) -> str:
    """Return the host of the endpoint URL of an SQS. Raises `UsageError` if it is not one."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # a port that is not a number, a bracket that is not closed
        pass
    raise UsageError(f"{url!r} is no endpoint URL: it looks like http://127.0.0.1:4576")
