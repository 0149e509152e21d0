"""The callers of a server on this machine: programs, and no web pages.

A page that a browser has open can send requests to 127.0.0.1, and can let its own host name resolve to it (DNS
rebinding). The headers Host and Origin tell such requests from those of SDKs, which send no Origin.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tarry.failed.usage import UsageError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
ALWAYS_LOOPBACK = ".localhost"
"""The end of names that browsers resolve to this machine, such as that of a bucket."""
OTHER_PAGES = frozenset({"cross-site", "same-site"})
"""The values of Sec-Fetch-Site for requests of other pages. A page's images and scripts send no Origin."""
CORS_HEADERS = "access-control-"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+")


@dataclass(frozen=True)
class Admission:
    """The host names that a server answers to, and the origins of the pages that may use it."""

    hosts: frozenset[str] = frozenset()
    """The names beside those of this machine, in lower case, without ports."""
    origins: frozenset[str] = frozenset()

    def refusal(self, headers: Mapping[str, str]) -> str | None:
        """Return why a request with these headers is refused; None if it is answered."""
        host = headers.get("Host", "")
        name = re.sub(r":\d*$", "", host).lower()
        if name not in LOOPBACK and not name.endswith(ALWAYS_LOOPBACK) and name not in self.hosts:
            return (
                f"tarry local does not answer to the host {host!r:.100}, since a web page could use that name. "
                f"If it is yours, start tarry local with --allow-host {name or 'NAME':.100}"
            )
        origin = headers.get("Origin")
        if origin is None:
            is_of_a_page = headers.get("Sec-Fetch-Site") in OTHER_PAGES
            return "tarry local does not answer to web pages. The request comes from one." if is_of_a_page else None
        if origin in self.origins or origin == f"http://{host}":
            return None
        return (
            f"tarry local does not answer to web pages, and this request comes from {origin:.100}. "
            "If it is yours, start tarry local with --cors ORIGIN"
        )

    def cors(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that let a browser show the answer to the page that asked for it."""
        origin = headers.get("Origin")
        if origin not in self.origins:
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "DELETE, GET, HEAD, PATCH, POST, PUT",
            "Access-Control-Allow-Headers": headers.get("Access-Control-Request-Headers", "*"),
            "Access-Control-Expose-Headers": "*",
            "Vary": "Origin",
        }


LOCAL_ONLY = Admission()


def admission_of(hosts: Iterable[str], origins: Iterable[str]) -> Admission:
    """Return the admission of more hosts and of pages.

    Raises `UsageError` if a host is not a name without a port, or an origin is not ``SCHEME://HOST:PORT``.
    """
    hosts, origins = tuple(hosts), tuple(origins)
    for host in hosts:
        if not host or re.search(r"[/\s*]|:\d+$", host):
            raise UsageError(f"--allow-host {host}: must be a host name without scheme and port, such as sqs.test")
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise UsageError(f"--cors {origin}: must be an origin, such as http://localhost:3000")
    return Admission(frozenset(map(str.lower, hosts)), frozenset(origins))
