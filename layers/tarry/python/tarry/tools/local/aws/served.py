"""The description of itself that the server of `tarry local` serves, beside SQS."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

PATIENCE_SECONDS = 2


def served_queues(endpoint_url: str) -> dict[str, Mapping[str, Any]]:
    """Return the queues by name as the server of tarry describes them; empty for another SQS."""
    return queues_in(description(endpoint_url))


def queues_in(about: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the queues of a description by name."""
    try:
        return {queue["name"]: queue for queue in about["queues"]}
    except (LookupError, TypeError):
        return {}


def other_services(endpoint_url: str) -> tuple[bool, str | None]:
    """Return whether `tarry local` serves the SQS at a URL, and the endpoint URL of its tables, buckets and topics."""
    about = description(endpoint_url)
    url = about.get("other_services")
    return "queues" in about, url if isinstance(url, str) else None


def description(endpoint_url: str) -> dict[str, Any]:
    """Return the description at an endpoint; empty for another SQS."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url}/queues", timeout=PATIENCE_SECONDS) as answer:
            found = json.load(answer)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
