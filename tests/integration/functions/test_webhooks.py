"""The webhooks function: against receivers on loopback that accept, refuse and misbehave."""

import asyncio
import base64
import hmac
import json
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import boto3
import httpx
import pytest

from tarry import Reject
from tests import receiver as serving
from tests.integration.functions.conftest import dead, deliver
from tests.network import free_port
from tests.pages import ROOT, Page
from tests.receiver import Receiver, answer
from tests.records import Context, event, failed, record
from tests.wire import RunningClock, Wire

KEY = bytes(range(32))
SECRET = base64.b64encode(KEY).decode()

Load = Callable[..., ModuleType]


@pytest.fixture
def start(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that imports the webhooks function as a cold start does."""
    boto3.client("ssm").put_parameter(Name="/webhooks/key", Type="SecureString", Value=SECRET)

    def start_function(secret: str = "ssm:/webhooks/key", allow_private: bool = True) -> ModuleType:
        monkeypatch.setenv("SIGNING_SECRET", secret)
        monkeypatch.setenv("ALLOW_PRIVATE_ADDRESSES", str(allow_private).lower())
        return load("webhooks")

    return start_function


@pytest.fixture
def app(start: Load) -> ModuleType:
    return start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving.receiver() as here:
        yield here


def webhook(url: str, message_id: str = "m1", receives: int = 1) -> dict[str, Any]:
    return record(
        {"url": url, "payload": {"type": "order.paid", "order": message_id}}, message_id, "webhooks", receives
    )


def send(app: ModuleType, url: str, receives: int = 1) -> list[str]:
    return deliver(app, webhook(url, receives=receives))


def no_circuit_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let receivers on one host fail any number of times in a row."""
    monkeypatch.setattr(sys.modules["circuits"], "FAILURES", 100)


def resolving(app: ModuleType, monkeypatch: pytest.MonkeyPatch, *answers: list[str] | OSError) -> list[str]:
    """Let the look-ups of the function have these results, one after the other; return the list of hosts looked up.

    127.0.0.1 is then a public address, all others are private.
    """
    looked_up: list[str] = []
    left = list(answers)

    async def resolve(host: str) -> list[str]:
        looked_up.append(host)
        found = left.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(sys.modules["connections"], "is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(app, "client", app.client_of(allow_private=False, resolver=resolve))
    return looked_up


# the request


def test_a_webhook_is_posted_once_and_a_receiver_that_verifies_as_the_guide_says_accepts_it_and_no_forgery(
    app: ModuleType, receiver: Receiver, wire: Wire
) -> None:
    before = int(time.time())
    assert send(app, f"{receiver.url}/hooks?tenant=7") == []
    [request] = receiver.requests
    assert (request.method, request.path) == ("POST", "/hooks?tenant=7")
    assert json.loads(request.body) == {"type": "order.paid", "order": "m1"}
    sent = request.headers
    assert sent["content-type"] == "application/json"
    assert sent["host"] == f"127.0.0.1:{receiver.port}"
    assert before <= int(sent["webhook-timestamp"]) <= time.time()
    assert wire.requests == []
    guide: dict[str, Any] = {"__name__": "receiver"}
    for block in Page(ROOT / "docs/guides/webhooks.md").blocks:
        if block.file == "receiver.py":
            exec(block.text, guide)
    verify, guide["SECRET"] = guide["verify"], f"whsec_{SECRET}"
    later = str(int(sent["webhook-timestamp"]) + 1)
    assert verify(sent, request.body) == "m1"
    assert verify(sent | {"webhook-signature": f"v1,AAAA {sent['webhook-signature']}"}, request.body) == "m1"
    forgeries = [
        (sent, request.body + b" "), (sent | {"webhook-id": "m2"}, request.body),
        (sent | {"webhook-timestamp": later}, request.body), (sent | {"webhook-timestamp": "1785000000"}, request.body),
        (sent | {"webhook-signature": "v1,AAAA"}, request.body), (sent | {"webhook-signature": "é"}, request.body),
        ({}, request.body),
    ]  # fmt: skip
    for headers, body in forgeries:
        with pytest.raises(ValueError, match=r"the signature is wrong|the request is too old|invalid literal"):
            verify(headers, body)


def test_all_webhooks_of_a_batch_are_in_flight_at_once(app: ModuleType, receiver: Receiver, wire: Wire) -> None:
    receiver.hold_until = 10
    assert deliver(app, *(webhook(receiver.url, f"m{n}") for n in range(10))) == []
    assert receiver.most_in_flight == 10
    assert {request.headers["webhook-id"] for request in receiver.requests} == {f"m{n}" for n in range(10)}


def test_the_path_and_query_of_a_url_are_not_logged(
    app: ModuleType, receiver: Receiver, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    receiver.does("/token?key=1", answer(500))
    receiver.does("/token?key=2", answer(400))
    assert deliver(app, *(webhook(f"{receiver.url}/token?key={n}", f"m{n}") for n in range(3))) == ["m1"]
    assert "token" not in caplog.text
    assert "token" not in str(wire.envelopes())


def test_a_proxy_of_the_environment_does_not_see_the_webhooks_and_cookies_of_a_receiver_are_not_kept(
    start: Load, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    receiver.does("/", answer(200, set_cookie="session=1"))
    app = start()
    assert [send(app, receiver.url), send(app, receiver.url)] == [[], []]
    assert ["cookie" in request.headers for request in receiver.requests] == [False, False]


# the response


def test_a_failing_or_busy_receiver_is_tried_again_with_growing_delays_and_not_before_it_asks_for(
    app: ModuleType, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_circuit_opens(monkeypatch)
    cases: list[tuple[int, str | None, int, int, int]] = [
        # status, Retry-After, attempt, and the bounds of the delay
        (500, None, 1, 5, 10), (502, "60", 1, 5, 10), (500, None, 3, 900, 1_800),
        (429, "60", 1, 60, 60), (503, "7200", 1, 7_200, 7_200),
        (429, "1", 3, 900, 1_800),  # a receiver that is always busy does not use up all attempts in seconds
        (429, "soon", 1, 5, 10),
    ]  # fmt: skip
    batch = []
    for number, (status, retry_after, attempt, _, _) in enumerate(cases):
        receiver.does(f"/{number}", answer(status, **({"retry_after": retry_after} if retry_after else {})))
        batch.append(webhook(f"{receiver.url}/{number}", f"m{number}", receives=attempt))
    assert deliver(app, *batch) == [f"m{number}" for number in range(len(cases))]
    assert wire.envelopes() == []
    for number, (*case, earliest, latest) in enumerate(cases):
        assert earliest <= wire.visibilities()[f"handle-m{number}"] <= latest, case


def test_a_webhook_that_failed_eight_times_is_dead_lettered_with_the_last_response(
    app: ModuleType, receiver: Receiver, wire: Wire
) -> None:
    receiver.does("/hook", answer(503, "overloaded\n\x1b[31m", retry_after="20"))
    assert send(app, f"{receiver.url}/hook", receives=8) == []
    assert dead(wire) == [("exhausted", "127.0.0.1 answered 503: overloaded [31m (Retry-After: 20 s)")]


def test_other_responses_are_dead_lettered_at_once_with_the_beginning_of_their_body(
    app: ModuleType, receiver: Receiver, wire: Wire
) -> None:
    """A body that never ends is not read to its end."""
    receiver.does("/well", serving.endless(200))
    receiver.does("/404", serving.endless(404))
    cases = {
        400: ": no field 'amount'",
        404: f": {'x' * 300}",
        304: "",
        301: ": no field 'amount'; a redirect is followed only with 307 or 308, which repeat the POST",
        308: ": no field 'amount'",  # without a Location
    }
    for status in (400, 304, 301, 308):
        receiver.does(f"/{status}", answer(status, "" if status == 304 else "no field\r\n  'amount'"))
    paths = ["well", *map(str, cases)]
    assert deliver(app, *(webhook(f"{receiver.url}/{path}", path) for path in paths)) == []
    texts = [("rejected", f"127.0.0.1 answered {status}{text}") for status, text in cases.items()]
    assert sorted(dead(wire)) == sorted(texts)
    assert len(receiver.requests) == len(paths)


def test_a_receiver_that_does_not_answer_is_tried_again(app: ModuleType, receiver: Receiver, wire: Wire) -> None:
    receiver.does("/cut", serving.cut)
    receiver.does("/cut-in-the-headers", serving.cut_in_the_headers)
    receiver.does("/silence", serving.silence)
    closed = f"http://127.0.0.1:{free_port()}"
    urls = [f"{receiver.url}/cut", f"{receiver.url}/cut-in-the-headers", f"{receiver.url}/silence", closed]
    app.client.timeout = httpx.Timeout(5, read=0.1)
    assert deliver(app, *(webhook(url, f"m{n}") for n, url in enumerate(urls))) == ["m0", "m1", "m2", "m3"]
    assert all(5 <= seconds <= 10 for seconds in wire.visibilities().values())
    assert deliver(app, *(webhook(url, f"m{n}", receives=8) for n, url in enumerate(urls))) == []
    disconnected = "Server disconnected without sending a response."
    reasons = [disconnected, disconnected, "ReadTimeout", "All connection attempts failed"]
    assert sorted(dead(wire)) == sorted(("exhausted", f"127.0.0.1 did not answer: {reason}") for reason in reasons)


def test_a_webhook_that_takes_longer_than_its_timeout_fails_alone(app: ModuleType, receiver: Receiver) -> None:
    receiver.does("/slow", serving.silence)
    clock = RunningClock(begins=lambda: len(receiver.requests) == 2)
    handler = app.handler.replace(timeout=0.2)
    with Wire(clock=clock) as wire:
        batch = event(webhook(f"{receiver.url}/slow"), webhook(f"{receiver.url}/fast", "m2"))
        assert failed(handler(batch, Context())) == ["m1"]
    assert 4 <= wire.visibilities()["handle-m1"] <= 10


def test_the_timeout_leaves_time_for_fresh_and_redelivered_messages_in_one_invocation(app: ModuleType) -> None:
    steps = sys.modules["connections"].TIMEOUT
    assert max(steps.connect, steps.read, steps.write, steps.pool) < app.handler.timeout
    assert 2 * app.handler.timeout + 3 <= 30  # the timeout of the function, less what settling needs


# messages that cannot be sent


def test_a_message_that_is_no_webhook_is_dead_lettered_with_the_reason_and_without_its_secrets(
    app: ModuleType, wire: Wire
) -> None:
    cases: list[tuple[object, str, str]] = [
        ({"payload": {}}, "undecodable", "url: Field required"),
        ({"url": "https://hooks.example/"}, "undecodable", "payload: Field required"),
        ({"url": 7, "payload": {}}, "undecodable", "url: Input should be a valid string"),
        ("order o-1 was paid", "undecodable", "is not JSON"),
        ({"url": "https://ada:pass@hooks.example/", "payload": {}}, "rejected", "contains a user name or a password"),
    ]
    assert deliver(app, *(record(body, f"m{n}", "webhooks") for n, (body, _, _) in enumerate(cases))) == []
    found = {each["id"]: each["failure"] for each in wire.envelopes()}
    for number, (_, reason, text) in enumerate(cases):
        failure = found[f"m{number}"]
        assert (failure["reason"], text in failure["message"], "pass@" in json.dumps(failure)) == (reason, True, False)


def test_a_payload_that_json_does_not_have_is_rejected(app: ModuleType, receiver: Receiver, wire: Wire) -> None:
    nan = record(f'{{"url": "{receiver.url}", "payload": [NaN]}}', "m1", "webhooks")
    surrogate = record(f'{{"url": "{receiver.url}", "payload": "\\ud83d"}}', "m2", "webhooks")
    assert deliver(app, nan, surrogate) == []
    assert {reason for reason, _ in dead(wire)} <= {"rejected", "undecodable"}
    assert "m1" not in [request.headers["webhook-id"] for request in receiver.requests]


# addresses


def test_a_receiver_at_a_private_address_is_refused_however_the_address_is_written(
    start: Load, load: Callable[[str], ModuleType], receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1"]
    batch = [webhook(f"http://{host}:{receiver.port}/", f"m{n}") for n, host in enumerate(hosts)]
    app = start(allow_private=False)
    monkeypatch.delenv("ALLOW_PRIVATE_ADDRESSES")
    for refusing in (app, load("webhooks")):  # and by default
        wire.requests.clear()
        assert deliver(refusing, *batch) == []
        assert len(dead(wire)) == len(hosts)
        for reason, message in dead(wire):
            assert reason == "rejected"
            assert message.endswith("is not public; ALLOW_PRIVATE_ADDRESSES=true would allow it")
    assert receiver.requests == []


def test_a_host_with_one_private_address_among_others_is_refused(
    app: ModuleType, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(app, monkeypatch, ["127.0.0.1", "10.0.0.5"])
    assert send(app, f"http://hooks.example:{receiver.port}/") == []
    text = "hooks.example has the address 10.0.0.5, which is not public; ALLOW_PRIVATE_ADDRESSES=true would allow it"
    assert dead(wire) == [("rejected", text)]
    assert receiver.requests == []


def test_the_connection_goes_to_the_address_that_was_checked_when_dns_changes_its_answer(
    app: ModuleType, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving.receiver("127.0.0.2", receiver.port) as internal:
        looked_up = resolving(app, monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
        by_socket: list[object] = []
        original = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *more, **named: by_socket.append(host) or original(host, *more, **named)
        )
        assert send(app, f"http://hooks.example:{receiver.port}/") == []  # delivered
        assert wire.requests == []
        assert send(app, f"http://hooks.example:{receiver.port}/") == []  # rejected
        assert [text.partition(",")[0] for _, text in dead(wire)] == ["hooks.example has the address 127.0.0.2"]
        assert looked_up == ["hooks.example", "hooks.example"]
        assert "hooks.example" not in by_socket
        assert internal.requests == []
    [request] = receiver.requests
    assert request.headers["host"] == f"hooks.example:{receiver.port}"


def test_the_next_address_of_a_host_is_used_if_one_refuses_the_connection(
    app: ModuleType, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(app, monkeypatch, ["127.0.0.9", "127.0.0.1"])
    monkeypatch.setattr(sys.modules["connections"], "is_public", lambda _: True)
    assert send(app, f"http://hooks.example:{receiver.port}/") == []
    assert len(receiver.requests) == 1


def test_a_host_that_cannot_be_looked_up_is_tried_again(
    app: ModuleType, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(app, monkeypatch, socket.gaierror(-2, "Name or service not known"), socket.gaierror(-3, "Try again"))
    assert send(app, "https://hooks.example/") == ["m1"]
    assert send(app, "https://hooks.example/", receives=8) == []
    text = "hooks.example did not answer: its address cannot be looked up: [Errno -3] Try again"
    assert dead(wire) == [("exhausted", text)]


def test_look_ups_that_hang_fail_their_own_messages_alone(
    app: ModuleType, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, released = list[threading.Thread](), threading.Event()

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host == "slow.example":
            hanging.append(threading.current_thread())
            released.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(sys.modules["connections"], "LOOK_UP_SECONDS", 0.01)
    no_circuit_opens(monkeypatch)
    try:
        # More than the 32 threads that an event loop has at most for look-ups.
        batch = [webhook("http://slow.example/", f"m{n}", receives=8) for n in range(40)]
        assert deliver(app, *batch) == []
        assert dead(wire) == [("exhausted", "slow.example did not answer: its address was not found in 0.01 s")] * 40
        monkeypatch.setattr(sys.modules["connections"], "LOOK_UP_SECONDS", 60)
        assert send(app, f"http://fast.example:{receiver.port}/") == []
        assert len(receiver.requests) == 1
    finally:
        released.set()
        for thread in hanging:
            thread.join()


def test_tls_uses_the_name_of_the_host_and_not_its_address(
    start: Load, wire: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = certificate_of("hooks.example", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    names: list[str | None] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    tls.sni_callback = lambda _, name, __: names.append(name)
    app = start()
    with serving.receiver(tls=tls) as receiver:
        resolving(app, monkeypatch, ["127.0.0.1"], ["127.0.0.1"])
        assert send(app, f"https://hooks.example:{receiver.port}/") == []
        assert send(app, f"https://other.example:{receiver.port}/") == ["m1"]
    assert names == ["hooks.example", "other.example"]
    assert [request.headers["host"] for request in receiver.requests] == [f"hooks.example:{receiver.port}"]


def certificate_of(host: str, folder: Path) -> Path:
    """Return a file with a self-signed certificate and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(form[0]) + key.private_bytes(*form))
    return path


# redirects


def test_a_redirect_that_repeats_the_post_is_followed_with_the_same_body_and_signature(
    app: ModuleType, receiver: Receiver, wire: Wire
) -> None:
    receiver.does("/old", answer(307, location="/moved"))
    receiver.does("/moved", answer(308, location=f"http://localhost:{receiver.port}/new"))
    assert send(app, f"{receiver.url}/old") == []
    assert [request.path for request in receiver.requests] == ["/old", "/moved", "/new"]
    first, _, last = receiver.requests
    assert (last.method, last.body) == ("POST", first.body)
    assert last.headers == first.headers | {"host": f"localhost:{receiver.port}"}


def test_a_redirect_to_a_private_address_is_refused_on_every_hop(
    app: ModuleType, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving.receiver("127.0.0.2", receiver.port) as internal:
        port = receiver.port
        receiver.does("/", answer(307, location="/again"))
        receiver.does("/again", answer(308, location=f"http://internal.example:{port}/admin"))
        resolving(app, monkeypatch, ["127.0.0.1"], ["127.0.0.1"], ["127.0.0.2"])
        assert send(app, f"http://hooks.example:{port}/") == []
        assert [text.partition(",")[0] for _, text in dead(wire)] == ["internal.example has the address 127.0.0.2"]
        assert internal.requests == []


def test_a_redirect_loop_and_a_redirect_to_a_bad_url_are_rejected(
    app: ModuleType, receiver: Receiver, wire: Wire
) -> None:
    refused = "127.0.0.1 redirects to a URL that is refused: the URL"
    cases = {
        "/loop": "more than 3 redirects, the last one to 127.0.0.1",
        "http://ada:pass@127.0.0.1/": f"{refused} contains a user name or a password; the signature identifies you",
    }
    paths = ["/loop", "/user"]
    for path, location in zip(paths, cases, strict=True):
        receiver.does(path, answer(307, location=location))
    assert deliver(app, *(webhook(receiver.url + path, path[1:]) for path in paths)) == []
    assert sorted(dead(wire)) == sorted(("rejected", text) for text in cases.values())
    assert sorted(request.path for request in receiver.requests) == [*["/loop"] * 4, "/user"]


# circuits


def test_a_circuit_opens_after_five_failures_in_a_row_and_is_tried_once_every_30_seconds(
    app: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout is a failure; an address that is not allowed is none; any answer closes the circuit."""
    module = sys.modules["circuits"]
    now = 100.0
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(
        CancelledError=asyncio.CancelledError, get_running_loop=lambda: SimpleNamespace(time=lambda: now)
    ))  # fmt: skip
    circuits, failed_ones = module.Circuits(), [app.ReceiverFailed(), asyncio.CancelledError(), app.ReceiverFailed()]

    def call(error: BaseException | None = None, *, must_try: bool = False) -> str:
        try:
            with circuits.guarding("slow.example", must_try=must_try):
                if error is not None:
                    raise error
        except BaseException as raised:  # noqa: BLE001 the kind is asserted
            return type(raised).__name__
        return "answered"

    assert [call(each) for each in failed_ones] == ["ReceiverFailed", "CancelledError", "ReceiverFailed"]
    assert call(Reject("not public")) == "Reject"
    assert call() == "answered"
    for _ in range(5):
        assert call(app.ReceiverFailed()) == "ReceiverFailed"
    assert call() == "CircuitBreakerOpenError"
    now += 29
    assert call() == "CircuitBreakerOpenError"
    assert call(app.ReceiverFailed(), must_try=True) == "ReceiverFailed"  # this failure counts too
    now += 30
    with circuits.guarding("slow.example"):
        assert call() == "CircuitBreakerOpenError"  # one is tried at that time
        with circuits.guarding("fast.example"):
            pass
    assert call(sys.modules["answers"].WebhookRefused()) == "WebhookRefused"
    assert call() == "answered"


def test_a_webhook_of_an_open_circuit_is_deferred_unless_it_is_a_day_old(
    app: ModuleType, receiver: Receiver, wire: Wire
) -> None:
    receiver.does("/down", answer(500))
    down = f"{receiver.url}/down"
    assert len(deliver(app, *(webhook(down, f"m{n}") for n in range(5)))) == 5
    fresh, old = webhook(down, "fresh"), webhook(down, "old")
    for each, age in [(fresh, 0), (old, 90_000)]:
        each["attributes"]["SentTimestamp"] = str(int((time.time() - age) * 1000))
    assert deliver(app, fresh, old) == ["old"]
    assert len(receiver.requests) == 6
    [copy] = wire.sent_entries()
    assert 1 <= copy["DelaySeconds"] <= 30


# the signing key


def requests_to_store(app: ModuleType) -> list[str]:
    """Return a list of the operations that the function asks of Parameter Store or Secrets Manager from now on."""
    operations: list[str] = []
    app.signing_key._provider.client.meta.events.register(
        "before-call", lambda model, **_: operations.append(model.name)
    )
    return operations


def test_the_key_is_read_once_and_may_be_a_secret_with_the_prefix_of_standard_webhooks(
    start: Load, receiver: Receiver, wire: Wire
) -> None:
    arn = boto3.client("secretsmanager").create_secret(Name="key", SecretString=f"whsec_{SECRET}")["ARN"]
    for secret, operation in (
        ("ssm:/webhooks/key", "GetParameter"),
        ("secretsmanager:key", "GetSecretValue"),
        (f"secretsmanager:{arn}", "GetSecretValue"),
    ):
        app = start(secret)
        operations = requests_to_store(app)
        assert deliver(app, *(webhook(receiver.url, f"m{n}") for n in range(5))) == []
        assert send(app, receiver.url) == []
        assert operations == [operation]
    for request in receiver.requests:
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        expected = base64.b64encode(hmac.digest(KEY, signed, "sha256")).decode()
        assert request.headers["webhook-signature"] == f"v1,{expected}"


def test_without_a_key_every_message_is_deferred_and_one_error_names_the_parameter(
    app: ModuleType, receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssm = boto3.client("ssm")
    ssm.put_parameter(Name="/webhooks/short", Type="SecureString", Value="c2hv")
    ssm.put_parameter(Name="/webhooks/text", Type="SecureString", Value="correct horse battery staple!!")
    no_store = "SIGNING_SECRET: it starts with neither ssm: nor secretsmanager:, and is not shown, as it may be the key"
    cases = {
        "ssm:/webhooks/none": "ssm:/webhooks/none: An error occurred (ParameterNotFound)",
        "secretsmanager:none": "secretsmanager:none: An error occurred (ResourceNotFoundException)",
        "ssm:/webhooks/short": "ssm:/webhooks/short: it is a key of 3 bytes",
        "ssm:/webhooks/text": "ssm:/webhooks/text: it is not base64",
        "": no_store,
        SECRET: no_store,
        f"whsec:{SECRET}": no_store,
    }
    for source, text in cases.items():
        caplog.clear()
        monkeypatch.setattr(app, "signing_key", app.SigningKey(source))
        with Wire() as wire:
            assert deliver(app, *(webhook(receiver.url, f"m{n}", receives=8) for n in range(3))) == []
        # A copy in the same queue, whose next attempt has the same number.
        assert [(each["id"], each["carried"]) for each in wire.envelopes()] == [("m0", 7), ("m1", 7), ("m2", 7)]
        assert {entry["DelaySeconds"] for entry in wire.sent_entries()} == {900}
        assert {request.queue for request in wire.sent("SendMessageBatch")} == {"webhooks"}
        [line] = [line for line in caplog.records if line.levelno == logging.ERROR]
        assert f"cannot sign with {text}" in line.getMessage()
        assert "correct horse" not in caplog.text
        assert SECRET not in caplog.text
    assert receiver.requests == []


def test_a_key_that_was_missing_is_found_when_it_is_there(
    start: Load, receiver: Receiver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = start("ssm:/webhooks/later")
    now = [1_000.0]
    monkeypatch.setattr(sys.modules["signing_key"].time, "monotonic", lambda: now[0])
    operations = requests_to_store(app)
    for _ in range(2):
        assert send(app, receiver.url) == []
    assert operations == ["GetParameter"]  # a failed read is not repeated at once
    boto3.client("ssm").put_parameter(Name="/webhooks/later", Type="SecureString", Value=SECRET)
    now[0] += 31
    assert send(app, receiver.url) == []
    assert len(receiver.requests) == 1
