"""Where requests go: to AWS, or to an SQS on this machine or in a private network."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address


def is_aws(endpoint_url: str) -> bool:
    """Whether requests to an endpoint URL, usually ``client.meta.endpoint_url``, go to AWS.

    The host of the URL decides, without a look-up in DNS. Loopback is local; over plain http, also private addresses,
    names without a dot, and ``.internal``. Everything else counts as AWS: the private address of a VPC endpoint is
    reached over https.
    """
    parts = urlsplit(endpoint_url)
    host = (parts.hostname or "").rstrip(".")
    address = _address(host)
    if address is not None:
        is_loopback, is_private = address.is_loopback, address.is_private
    else:
        is_loopback = host == "localhost" or host.endswith(".localhost")
        # A resolver may take a name that begins with a digit for an address: 134744072 is 8.8.8.8.
        is_private = host.endswith(".internal") or ("." not in host and host[:1].isalpha())
    return not (is_loopback or (is_private and parts.scheme == "http"))


def place_text(endpoint_url: str, account: str | None = None, region: str | None = None) -> str:
    """Return where requests go, for a user: ``AWS 123456789012 eu-west-1`` or ``local 127.0.0.1:4576``."""
    if is_aws(endpoint_url):
        return " ".join(filter(None, ["AWS", account, region]))
    return f"local {urlsplit(endpoint_url).netloc.rpartition('@')[2]}"


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
