"""The decisions of the webhooks function: URLs, addresses, Retry-After, signatures."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from tarry import Reject

FUNCTION = Path(__file__).parents[2] / "functions/webhooks"
MODULES = ("addresses", "answers", "signature")
NOW = datetime(2026, 7, 25, 8, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def _modules() -> Iterator[None]:
    """Import the modules as Lambda does, by their names alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FUNCTION)
        for name in MODULES:
            import_module(name)
        yield
        for name in MODULES:
            del sys.modules[name]


def module(name: str) -> ModuleType:
    return sys.modules[name]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True), ("8.8.8.8", True), ("2606:4700:4700::1111", True), ("2a00:1450:4001:81b::200e", True),
        ("10.1.2.3", False), ("172.31.0.1", False), ("192.168.1.1", False),  # private
        ("127.0.0.1", False), ("127.9.9.9", False), ("::1", False),  # loopback
        ("0.0.0.0", False), ("::", False),  # unspecified
        ("169.254.169.254", False), ("169.254.170.2", False), ("fd00:ec2::254", False),  # metadata of EC2 and ECS
        ("169.254.1.1", False), ("fe80::1", False), ("fe80::1%eth0", False),  # link-local
        ("100.64.0.1", False), ("100.127.255.254", False),  # CGNAT
        ("224.0.0.1", False), ("239.255.255.250", False), ("ff02::1", False), ("ff0e::1", False),  # multicast
        ("240.0.0.1", False), ("255.255.255.255", False),  # reserved
        ("192.0.2.1", False), ("198.51.100.1", False), ("203.0.113.1", False), ("2001:db8::1", False),  # documentation
        ("198.18.0.1", False), ("192.88.99.1", False), ("192.88.98.1", True),  # benchmarks, 6to4 relays
        ("fc00::1", False), ("fd12:3456::1", False), ("fec0::1", False),  # unique-local, site-local
        ("::ffff:10.0.0.1", False), ("::ffff:8.8.8.8", False), ("::127.0.0.1", False),  # IPv4 in IPv6
        ("64:ff9b::a9fe:a9fe", False), ("2002:7f00:1::", False), ("2001:0:4136:e378::1", False),  # NAT64, 6to4, Teredo
    ],
)  # fmt: skip
def test_only_addresses_of_the_public_internet_are_public(address: str, expected: bool) -> None:
    assert module("addresses").is_public(address) is expected


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://hooks.example/", "the URL must start with https:// or http://, not ftp:"),
        ("file:///etc/passwd", "the URL must start with https:// or http://, not file:"),
        ("hooks.example/in", "the URL must start with https:// or http://"),
        ("", "the URL must start with https:// or http://"),
        ("https://ada:pass@hooks.example/", "the URL contains a user name or a password; the signature identifies you"),
        ("https://:pass@hooks.example/", "the URL contains a user name or a password; the signature identifies you"),
        ("https:///in", "the URL has no host"),
        ("https://hooks.example:70000/", "the URL has the port 70000; the highest is 65535"),
        ("https://hooks.example:0/", "the URL has the port 0; the highest is 65535"),
        ("https://hooks.example:port/", "the URL is not valid"),
        ("https://hooks.example/\n", "the URL is not valid"),
        ("https://0177.0.0.1/", "the URL is not valid"),  # octal
        ("http://xn--/", "the URL is not valid"),
        ("http://xn--a/", "the URL is not valid"),
        ("http://xn--zzzz99999999/", "the URL is not valid"),
        ("http://\u05d0a.example/", "the URL is not valid"),  # letters of two directions
        ("http://[::1o/]:/", "the URL is not valid"),
        ("http://hooks.example/\ud800", "the URL is not valid"),
        ("http://a..b/", "the URL is not valid"),
        ("http://exa mple/", "the URL is not valid"),
        (f"http://{'a' * 64}.example/", "the URL is not valid"),
        (f"http://{'a.' * 127}aa/", "the URL is not valid"),  # 256 characters
    ],
)
def test_a_url_that_cannot_be_posted_to_is_rejected_with_the_reason(url: str, text: str) -> None:
    with pytest.raises(Reject) as rejected:
        module("addresses").url_of(url)
    assert str(rejected.value) == text


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/new", "https://hooks.example/new"), ("new?a=1", "https://hooks.example/in/new?a=1"),
        ("//other.example/x", "https://other.example/x"), ("https://other.example", "https://other.example"),
    ],
)  # fmt: skip
def test_a_redirect_may_be_relative(location: str, expected: str) -> None:
    assert str(module("addresses").redirect_of(httpx.URL("https://hooks.example/in/old"), location)) == expected


@pytest.mark.parametrize(
    "location",
    ["http://xn--/", "//xn--a/", ":https://[::1o/]:/", "https://[::1", "https://a..b/", "/\ud800", "http://b.example/"],
)
def test_a_redirect_to_a_url_that_is_not_valid_or_to_http_is_rejected_and_the_url_not_shown(location: str) -> None:
    with pytest.raises(Reject) as rejected:
        module("addresses").redirect_of(httpx.URL("https://hooks.example/in"), location)
    if location == "http://b.example/":
        assert str(rejected.value).startswith("hooks.example redirects from https to http")
    else:
        assert str(rejected.value) == "hooks.example redirects to a URL that is refused: the URL is not valid"


def test_every_host_that_can_be_looked_up_is_accepted() -> None:
    for host in ("hooks.example.", "a_b.example", "xn--fiqs8s", "b\u00fccher.example", "[2a00::1]", "0x7f.1"):
        assert module("addresses").url_of(f"https://{host}/in").scheme == "https"


@pytest.mark.parametrize(
    ("status", "is_final"), [(400, True), (499, True), (500, False), (599, False), (600, True), (999, True)]
)
def test_only_a_status_of_500_to_599_is_a_failure_of_the_receiver(status: int, is_final: bool) -> None:
    error = module("answers").error_of(module("answers").Answer("hooks.example", status), NOW)
    assert isinstance(error, Reject) is is_final


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("1", 1), (" 120 ", 120), ("39600", 39_600), ("39601", 39_600), ("9" * 400, 39_600),
        ("Sat, 25 Jul 2026 08:02:00 GMT", 120), ("Saturday, 25-Jul-26 08:02:00 GMT", 120),
        ("Sat Jul 25 08:02:00 2026", 120), ("Sat, 25 Jul 2026 10:02:00 +0200", 120),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 39_600),
        ("Sat, 25 Jul 2026 08:00:00 GMT", None), ("Sat, 25 Jul 2026 07:59:59 GMT", None),  # now and before
        (None, None), ("", None), ("0", None), ("-1", None), ("1.5", None), ("1e3", None), ("٣", None), ("soon", None),
        ("Sat, 99 Jul 2026 08:02:00 GMT", None), ("Sat, 25 Jul 99999999 08:02:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 39_600),
    ],
)  # fmt: skip
def test_retry_after_is_a_number_of_seconds_or_a_date_and_at_most_eleven_hours(
    header: str | None, expected: int | None
) -> None:
    assert module("answers").seconds_until(header, NOW) == expected


def test_the_signature_is_that_of_the_standard_webhooks_specification() -> None:
    """The key, message and signature of the specification's own example."""
    key = module("signature").key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = module("signature").headers_of(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
