"""Names and regions, read from queue URLs and ARNs."""

from tarry.support.arn import queue_arn


def queue_name(name_url_or_arn: str) -> str:
    """Return the name of a queue that is given by its name, URL or ARN."""
    arn = queue_arn(name_url_or_arn)
    return arn.name or name_url_or_arn.rpartition("/")[2].rpartition(":")[2]


def region_of(arn: str) -> str:
    """Return the region of an ARN, of a queue or of a function."""
    return arn.split(":")[3]
