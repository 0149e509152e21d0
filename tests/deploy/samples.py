"""Shipped events for each function, and their expected results: some work, some are rejected, one each is retried."""

import base64
import hmac
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from tests.deploy.aws import ACCOUNT, REGION, client
from tests.deploy.environment import ROOT
from tests.deploy.recorder import Recorder, Refusal, Request
from tests.deploy.stack import Stack, wait_until
from tests.receiver import Receiver, answer, receiver
from tests.receiver import Request as Webhook

RETRIED = {"orders": "o-1003 v2", "ledger": "e-4", "scans": "p-501 in_transit", "webhooks": "o-2002"}
"""The message that is retried once, by queue."""
THROTTLED = {
    "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
    "message": "Transaction cancelled, please refer cancellation reasons for specific reasons [None, ThrottlingError]",
    "CancellationReasons": [{"Code": "None"}, {"Code": "ThrottlingError", "Message": "Throughput exceeds the limit"}],
}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve a receiver of webhooks: `/busy` asks for one retry, `/gone` refuses for good, the rest is accepted."""
    with receiver() as here:
        here.does("/busy", answer(503, retry_after="3"), answer(200))
        here.does("/gone", answer(410))
        yield here


def _is_signed(webhook: Webhook, secret: str) -> bool:
    """Return whether the signature is that of Standard Webhooks for this secret."""
    sent = webhook.headers
    content = f"{sent['webhook-id']}.{sent['webhook-timestamp']}.".encode() + webhook.body
    expected = hmac.digest(base64.b64decode(secret), content, "sha256")
    return sent["webhook-signature"] == f"v1,{base64.b64encode(expected).decode()}"


def records(event: str) -> list[dict[str, Any]]:
    """Return the records of a file in `events/`."""
    found: list[dict[str, Any]] = json.loads((ROOT / "events" / f"{event}.json").read_text())["Records"]
    return found


def expect(what: str, actual: object, expected: object) -> None:
    """Raise an AssertionError that names both values, unless they are equal."""
    if actual != expected:
        raise AssertionError(f"{what}: {actual!r} instead of {expected!r}")


def require(is_true: object, what: str) -> None:
    """Raise an AssertionError with the text unless the value is true."""
    if not is_true:
        raise AssertionError(what)


@dataclass
class Samples:
    """The samples that were sent to a stack, and the checks of their results."""

    stack: Stack
    recorder: Recorder
    receiver: Receiver
    ids: dict[str, str] = field(default_factory=dict)
    """The message ids by the name of what is in the message: `o-1003 v2`, `e-3`, `p-505`."""

    def send(self) -> None:
        """Send all samples, each queue's together, so that a queue has one batch of them."""
        self.recorder.refuse(Refusal("TransactWriteItems", '"e-4"', THROTTLED))
        orders, scans, webhooks = records("orders"), records("digest"), records("webhooks")
        with self.stack.stopped():
            # Version 2 of o-1003 arrives before version 1, o-1004 is over the limit, and o-1001 arrives twice.
            self._send("orders", *(orders[number] for number in (0, 1, 4, 5, 6, 7)), records("undecodable")[1])
            self._send("ledger", *records("ledger"))
            self._send("scans", *scans)
            self._send("webhooks", *map(self._to_the_receiver, webhooks))

    def _send(self, queue: str, *samples: dict[str, Any]) -> None:
        for sample in samples:
            self.ids[_name(sample["body"])] = self.stack.send(self.queue(queue), sample)

    def _to_the_receiver(self, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "body": record["body"].replace("127.0.0.1:8080", f"127.0.0.1:{self.receiver.port}")}

    def queue(self, name: str) -> str:
        return self.stack.outputs[f"{name.title()}QueueUrl"]

    def wait(self, *ended: str) -> None:
        """Wait until all samples are settled. End the waits of the retried messages of the queues `ended` at once."""
        for queue in ended:
            wait = self._wait_of(queue)
            receipt = {"QueueUrl": wait.body["QueueUrl"], "ReceiptHandle": wait.body["Entries"][0]["ReceiptHandle"]}
            with suppress(self.stack.client_of_queues.exceptions.ReceiptHandleIsInvalid):  # the wait has ended
                self.stack.client_of_queues.change_message_visibility(**receipt, VisibilityTimeout=0)
        self.stack.wait_until_settled(*map(self.queue, RETRIED))

    def _wait_of(self, queue: str) -> Request:
        """Return the request for the delay of the retried message, which was confirmed before the function ended."""
        name = RETRIED[queue]
        wait_until(f"{name} is retried", lambda: self._logged_delays(name))
        delays = self._logged_delays(name)
        require(len(delays) == 1, f"{name} was retried {len(delays)} times, after {delays} s, instead of once")
        waits = self.recorder.of("ChangeMessageVisibilityBatch")
        of_queue = [request for request in waits if _path(request.body["QueueUrl"]) == _path(self.queue(queue))]
        found = [request for request in of_queue if request.body["Entries"][0]["VisibilityTimeout"] == delays[0]]
        require(found, f"the function of {queue} logged a delay of {delays[0]} s, and did not ask for it")
        return found[0]

    def _logged_delays(self, name: str) -> list[int]:
        start = f"waiting_retry message_id={self.ids[name]} "
        found = [re.search(r" delay=(\d+) ", line) for line in self.stack.log() if line.startswith(start)]
        return [int(delay[1]) for delay in found if delay]

    def check_orders(self) -> None:
        """Orders are in the table, one was retried, two are dead letters."""
        items = {item["order_id"]: (item["version"], item["total"]) for item in self.stack.table("OrdersTable")}
        expect("orders in the table", items, {"o-1001": (1, 900), "o-1002": (1, 3900), "o-1003": (2, 1350)})
        self._check_delay("orders", shortest=10, longest=20, operation="PutItem")
        declined = "order o-1004: 15,600.00 is over the limit of 5,000.00"
        self._check_dead_letters(
            "orders",
            {
                "o-1004 v1": ("fatal", "app.OrderDeclined", declined),
                '{"order": "o-4002"': ("undecodable", "tarry.Undecodable", "is not JSON"),
            },
        )

    def check_ledger(self) -> None:
        """Entries are applied in order, one was retried and held up its account, one is a dead letter."""
        balances = {item["account"]: item["balance"] for item in self.stack.table("AccountsTable")}
        expect("balances", balances, {"acct-1": 7500, "acct-2": 0})
        requests = self.recorder.of("TransactWriteItems", "SendMessageBatch")
        seen = [(_account(entry), self._done(request)) for request in requests if (entry := self._entry(request.body))]
        order = {account: [done for of, done in seen if of == account] for account in ("acct-1", "acct-2")}
        first = ["e-1 applied", "e-3 refused", "e-3 dead-lettered", "e-5 applied"]
        second = ["e-2 applied", "e-4 refused", "e-4 applied", "e-6 applied"]
        expect("the order of each account", order, {"acct-1": first, "acct-2": second})
        self._check_delay("ledger", shortest=30, longest=30, operation="TransactWriteItems")
        overdrawn = "entry e-3 of -12500 would overdraw account acct-1"
        self._check_dead_letters("ledger", {"e-3": ("rejected", "tarry.Reject", overdrawn)})

    def _entry(self, body: dict[str, Any]) -> str:
        """Return the entry in a transaction or in a dead letter; empty if there is none."""
        if "TransactItems" in body:
            put = body["TransactItems"][0].get("Put")  # else a transaction of attempts
            return str(put["Item"]["entry_id"]["S"]) if put else ""
        found = re.search(r'"entry": "(e-\d)"', body["Entries"][0]["MessageBody"])
        return found[1] if found else ""

    def _done(self, request: Request) -> str:
        done = "dead-lettered" if request.operation == "SendMessageBatch" else "applied"
        return f"{self._entry(request.body)} {done if request.status == 200 else 'refused'}"

    def check_attempts(self) -> None:
        """The table of attempts has the one failed run of each message that was retried, and says that it ended."""
        records = {record["message"]: record for record in self.stack.table("AttemptsTable")}
        for queue in ("orders", "ledger"):
            record = records[self.ids[RETRIED[queue]]]
            expect(f"the state of {RETRIED[queue]}", record["state"], "COMMITTED")
            expect(f"the runs of {RETRIED[queue]}", [*map(int, record["runs"])], [1])

    def check_digest(self) -> None:
        """Each scan is in one object, no object has a parcel twice, one scan was retried, two are dead letters."""
        objects = self.stack.objects(self.stack.outputs["DigestBucketName"]).values()
        digests = [[json.loads(line) for line in text.splitlines()] for text in objects]
        scans = Counter(f"{scan['parcel']} {scan['status']}" for digest in digests for scan in digest)
        parcels = ("p-501 picked_up", "p-501 in_transit", "p-502 picked_up", "p-503 delivered", "p-506 returned")
        expect("scans in objects", scans, Counter(parcels))
        for digest in digests:
            expect("parcels in a digest", max(Counter(scan["parcel"] for scan in digest).values()), 1)
        seconds = self._wait_of("scans").body["Entries"][0]["VisibilityTimeout"]
        require(seconds <= 2, f"the delay of p-501 in_transit is {seconds} s, more than 2 s")
        unknown = "parcel p-504: unknown carrier 'albatross'"
        self._check_dead_letters(
            "scans",
            {
                "p-504 picked_up": ("fatal", "app.UnknownCarrier", unknown),
                "p-505 lost": ("undecodable", "tarry.Undecodable", "does not fit Scan"),
            },
        )

    def check_webhooks(self) -> None:
        """Webhooks are signed, one was retried when its receiver asked for it, five are dead letters."""
        expect("webhooks", Counter(each.path for each in self.receiver.requests), {"/paid": 1, "/busy": 2, "/gone": 1})
        secret = self.stack.secret(self.stack.outputs["WebhooksSigningSecretArn"])
        for webhook in self.receiver.requests:
            require(_is_signed(webhook, secret), f"the signature of the webhook to {webhook.path} is wrong")
        for name, path in (("o-2001", "/paid"), ("o-2002", "/busy"), ("o-2003", "/gone")):
            ids = {webhook.headers["webhook-id"] for webhook in self.receiver.of(path)}
            expect(f"ids of the webhooks to {path}", ids, {self.ids[name]})
        self._check_due("webhooks", self.receiver.of("/busy")[0].at, shortest=5, longest=10)
        self._check_dead_letters(
            "webhooks",
            {
                "o-2003": ("rejected", None, "410"),
                "o-2004": ("rejected", None, "not ftp:"),
                "o-2005": ("rejected", None, "a user name or a password"),
                "o-2006": ("undecodable", "tarry.Undecodable", "url: Field required"),
                "order o-2007 was paid": ("undecodable", "tarry.Undecodable", "is not JSON"),
            },
        )

    def check_rights(self) -> None:
        """The roles allow each request that the functions made, and no function missed a right."""
        require(self.recorder.requests, "no function made a request, so nothing is known about the rights of the roles")
        refused = [
            f"{request.operation}: {request.response.get('message', request.status)}"
            for request in self.recorder.requests
            if "AccessDenied" in json.dumps(request.response) or request.status == 403
        ]
        expect("requests that the roles do not allow", refused, [])
        missed = [line for line in self.stack.log() if "missing_permission" in line]
        expect("log lines of missing permissions", missed, [])

    def check_tls(self, url_without_tls: str) -> str:
        """Check that the policies of the queues refuse a request that does not come over TLS."""
        for name in ("orders", "ledger", "scans", "webhooks"):
            try:
                client("sqs", url_without_tls).receive_message(QueueUrl=self.queue(name))
            except ClientError as error:
                expect(f"the error of {name} without TLS", error.response["Error"]["Code"], "AccessDenied")
            else:
                raise AssertionError(f"{name} accepts a request without TLS")
        return "Each queue refuses requests without TLS."

    def _check_delay(self, queue: str, *, shortest: int, longest: int, operation: str) -> None:
        """Check what the function asked for; not when the message came back.

        A delay counts from the failure. So the function asks for what is left of it when it settles the message, and
        the message is due at least `shortest` seconds after the response that made it fail.
        """
        failed = [request for request in self.recorder.of(operation) if request.status == 400]
        failed_at = next(request.answered_at for request in failed if _is_about(RETRIED[queue], request.body))
        self._check_due(queue, failed_at, shortest=shortest, longest=longest)

    def _check_due(self, queue: str, failed_at: float, *, shortest: int, longest: int) -> None:
        wait, name = self._wait_of(queue), RETRIED[queue]
        seconds = wait.body["Entries"][0]["VisibilityTimeout"]
        require(seconds <= longest, f"the delay of {name} is {seconds} s, more than {longest} s")
        due = wait.asked_at + seconds - failed_at
        require(due >= shortest, f"{name} is due {due:.1f} s after its failure, less than {shortest} s")

    def _check_dead_letters(self, queue: str, expected: dict[str, tuple[str, str | None, str]]) -> None:
        """Check the dead letters: by the name, their reason, the type of the error, and a part of its text."""
        url = self.stack.outputs[f"{queue.title()}DeadLettersUrl"]
        found = {message.envelope.get("id", message.id): message for message in self.stack.messages(url)}
        expect(f"ids of the dead letters of {queue}", set(found), {self.ids[name] for name in expected})
        origin = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.queue(queue).rpartition('/')[2]}"
        for name, (reason, kind, text) in expected.items():
            envelope = found[self.ids[name]].envelope
            failure = envelope["failure"]
            expect(f"origin of {name}", envelope["origin"], origin)
            expect(f"failure of {name}", (failure["reason"], failure["type"]), (reason, kind or failure["type"]))
            expect(f"attempts of {name}", (failure["attempts"], len(envelope["history"])), (1, 1))
            require(text in failure["message"], f"the failure of {name} is {failure['message']!r}, without {text!r}")
            functions = self.stack.resources("AWS::Lambda::Function").values()
            require(failure["function"] in functions, f"the failure of {name} names the function {failure['function']}")


def _name(body: str) -> str:
    """Return what is in a message: an order with its version, an entry, or a scan with its status."""
    try:
        content = json.loads(body)
    except ValueError:
        return body.partition(",")[0]
    if "payload" in content:
        return str(content["payload"]["data"]["order"])
    if "order" in content:
        return f"{content['order']} v{content['version']}"
    return str(content.get("entry") or f"{content['parcel']} {content['status']}")


def _is_about(name: str, body: dict[str, Any]) -> bool:
    """Return whether a request writes the entry or version of an order of this name."""
    item = body["Item"] if "Item" in body else body["TransactItems"][0]["Put"]["Item"]
    if "entry_id" in item:
        return bool(item["entry_id"]["S"] == name)
    return f"{item['order_id']['S']} v{item['version']['N']}" == name


def _account(entry: str) -> str:
    return {"e-1": "acct-1", "e-3": "acct-1", "e-5": "acct-1"}.get(entry, "acct-2")


def _path(url: str) -> str:
    """Return the account and the name in the URL of a queue; MiniStack gives URLs of several hosts."""
    return "/".join(url.split("/")[-2:])
