"""The URLs and addresses that a webhook may be sent to."""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address

import httpx

from tarry import Reject

HOST_NAME = re.compile(r"(?!.{254})[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
EXCLUDED_IPV4 = IPv4Network("192.88.99.0/24")
"""The relays of 6to4, which Python counts as global."""
GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All addresses of the public IPv6 internet. Outside are loopback, unique-local, link-local, multicast and those that
contain an IPv4 address (mapped, compatible, NAT64)."""
EXCLUDED_IPV6 = [
    IPv6Network("2001::/23"),  # IETF protocols, such as Teredo, which contains an IPv4 address
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4, which contains an IPv4 address
    IPv6Network("3fff::/20"),  # documentation
]


def url_of(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """Return the URL of a message, or of a redirect, which may be relative to ``base``.

    Raises:
        Reject: It cannot be posted to. The reason does not contain the URL, whose path or user may be secret.
    """
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        host, name = url.host, url.raw_host.decode()
    except (httpx.InvalidURL, ValueError):  # an IDNAError is a ValueError
        raise Reject("the URL is not valid") from None
    if url.scheme not in ("http", "https"):
        found = f", not {url.scheme}:" if url.scheme else ""
        raise Reject(f"the URL must start with https:// or http://{found}")
    if not host:
        raise Reject("the URL has no host")
    if not HOST_NAME.fullmatch(name) and not is_address(name):
        raise Reject("the URL is not valid")
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
        target = url_of(location, base=url)
    except Reject as error:
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
        return ip.is_global and not ip.is_multicast and ip not in EXCLUDED_IPV4
    return ip in GLOBAL_IPV6 and not any(ip in network for network in EXCLUDED_IPV6)
