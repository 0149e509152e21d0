"""The URLs and addresses that a webhook may be sent to."""

from ipaddress import IPv4Address, IPv6Network, ip_address

import httpx

from tarry import Reject

GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All addresses of the public IPv6 internet. Outside are loopback, unique-local, link-local, multicast and those that
contain an IPv4 address (mapped, compatible, NAT64)."""
EXCLUDED_IPV6 = [
    IPv6Network("2001::/23"),  # IETF protocols, such as Teredo, which contains an IPv4 address
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4, which contains an IPv4 address
    IPv6Network("3fff::/20"),  # documentation
]


def url_of(text: str) -> httpx.URL:
    """Return the URL of a message.

    Raises:
        Reject: It cannot be posted to. The reason does not contain the URL, whose path or user may be secret.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise Reject("the URL is not valid") from None
    if url.scheme not in ("http", "https"):
        found = f", not {url.scheme}:" if url.scheme else ""
        raise Reject(f"the URL must start with https:// or http://{found}")
    if not url.host:
        raise Reject("the URL has no host")
    if url.port is not None and not 0 < url.port < 65_536:
        raise Reject(f"the URL has the port {url.port}; the highest is 65535")
    if url.userinfo:
        raise Reject("the URL contains a user name or a password; the signature identifies you")
    return url


def redirect_of(url: httpx.URL, location: str) -> httpx.URL:
    """Return the URL that a response from ``url`` redirects to.

    Raises:
        Reject: It cannot be posted to.
    """
    try:
        target = url_of(str(url.join(location)))
    except (Reject, httpx.InvalidURL) as error:
        raise Reject(f"{url.host} redirects to a URL that is refused: {error}") from None
    if (url.scheme, target.scheme) == ("https", "http"):
        raise Reject(f"{url.host} redirects from https to http ({target.host}), which is not encrypted")
    return target


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet."""
    ip = ip_address(address)
    if isinstance(ip, IPv4Address):
        # Not global are private, loopback, link-local (the metadata of EC2 and ECS), CGNAT and reserved addresses.
        return ip.is_global and not ip.is_multicast
    return ip in GLOBAL_IPV6 and not any(ip in network for network in EXCLUDED_IPV6)
