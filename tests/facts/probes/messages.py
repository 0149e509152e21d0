"""Facts 16 to 19, 21, 35 and 35a: batch requests, the limits of a message, and the answer to a send."""

from hashlib import md5
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.sqs.message import digest_of_attributes
from tests.facts.platforms.platform import Platform, expect, refused
from tests.facts.registry import probe

MIB = 1_048_576
TOO_MANY = "TooManyEntriesInBatchRequest"


def entries(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(n), "MessageBody": f"number {n}", **more} for n in range(count)]


def expect_results(answer: dict[str, Any], *expected: list[str]) -> None:
    """Check the ids of the successful and of the failed entries."""
    found = tuple(sorted(each["Id"] for each in answer.get(key, [])) for key in ("Successful", "Failed"))
    expect(found, expected, "successful and failed")


@probe("16", "A batch request has at most ten entries: sends")
def ten_entries(platform: Platform) -> None:
    url = platform.queue()
    platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(10))
    refused("11 sends", platform.sqs.send_message_batch, text=TOO_MANY, QueueUrl=url, Entries=entries(11))


@probe("16", "The same for visibilities and deletes")
def ten_of_any_kind(platform: Platform) -> None:
    url, message = platform.received(60)
    eleven = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n in range(11)]
    changes, sqs = [{**each, "VisibilityTimeout": 1} for each in eleven], platform.sqs
    refused("11 visibilities", sqs.change_message_visibility_batch, text=TOO_MANY, QueueUrl=url, Entries=changes)
    refused("11 deletes", sqs.delete_message_batch, text=TOO_MANY, QueueUrl=url, Entries=eleven)


@probe("16", "Entry ids are unique in a request")
def unique_ids(platform: Platform) -> None:
    url, repeated = platform.queue(), [{"Id": "same", "MessageBody": body} for body in ("one", "two")]
    text = "BatchEntryIdsNotDistinct"
    refused("an id twice", platform.sqs.send_message_batch, text=text, QueueUrl=url, Entries=repeated)


@probe("16", "A failed entry is reported in a successful response: a send")
def a_failed_send(platform: Platform) -> None:
    wrong = {"Id": "wrong", "MessageBody": "parked too long", "DelaySeconds": 901}
    answer = platform.sqs.send_message_batch(QueueUrl=platform.queue(), Entries=[*entries(1), wrong])
    expect_results(answer, ["0"], ["wrong"])


@probe("35", "The answer has no Failed if no entry failed, and no Successful if all did")
def empty_lists_are_left_out(platform: Platform) -> None:
    url = platform.queue()
    sent = platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(1))
    late = platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(1, DelaySeconds=901))
    keys = [sorted({"Successful", "Failed"} & answer.keys()) for answer in (sent, late)]
    expect(keys, [["Successful"], ["Failed"]], "keys")


def change_visibilities(platform: Platform, *seconds: int, wait: float = 0, unknown: bool = False) -> dict[str, Any]:
    """Receive two messages, and change their visibilities in one request after ``wait`` seconds; return the answer."""
    url, first = platform.received(60)
    platform.send(url)
    handles = [first["ReceiptHandle"], platform.receive_one(url)["ReceiptHandle"], *(["no handle"] if unknown else [])]
    platform.wait(wait)
    changes = [
        {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": each}
        for n, (handle, each) in enumerate(zip(handles, seconds, strict=True))
    ]
    return dict(platform.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes))


@probe("16", "The same for a visibility: -1 s, and an invalid receipt handle")
def a_failed_visibility(platform: Platform) -> None:
    expect_results(change_visibilities(platform, 30, -1, 30, unknown=True), ["0"], ["1", "2"])


@probe("16", "The same for a total beyond the 12 hours of fact 1")
def a_failed_total(platform: Platform) -> None:
    expect_results(change_visibilities(platform, 30, 43_195, wait=10), ["0"], ["1"])


@probe("16", "The same for a delete with an invalid receipt handle")
def a_failed_delete(platform: Platform) -> None:
    url, message = platform.received(60)
    deletes = [{"Id": str(n), "ReceiptHandle": each} for n, each in enumerate([message["ReceiptHandle"], "no handle"])]
    expect_results(platform.sqs.delete_message_batch(QueueUrl=url, Entries=deletes), ["0"], ["1"])


# the limits of a message


def text(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"DataType": data_type, "StringValue": value}


@probe("17", "A message is at most 1 MiB")
def a_mebibyte(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, "x" * MIB)
    refused("1 MiB and a byte", platform.send, url, "x" * (MIB + 1))


@probe("17", "Bytes count, not characters")
def bytes_not_characters(platform: Platform) -> None:
    url = platform.queue(MaximumMessageSize=1_024)
    platform.send(url, "é" * 512)
    refused("513 characters of two bytes in a queue of 1,024 bytes", platform.send, url, "é" * 513)


@probe("17", "Names, types and values of attributes count too")
def attributes_count(platform: Platform) -> None:
    url = platform.queue(MaximumMessageSize=1_024)
    attribute = {"name": text("value")}  # 4 + 6 + 5 bytes
    platform.send(url, "x" * (1_024 - 15), MessageAttributes=attribute)
    refused("1,025 bytes in a queue of 1,024", platform.send, url, "x" * (1_024 - 14), MessageAttributes=attribute)


@probe("17", "A batch request is at most 1 MiB in all")
def a_mebibyte_in_all(platform: Platform) -> None:
    url, send = platform.queue(), platform.sqs.send_message_batch
    halves = [{"Id": each, "MessageBody": "x" * (MIB // 2)} for each in "12"]
    send(QueueUrl=url, Entries=halves)
    halves[1]["MessageBody"] += "x"
    refused("1 MiB and a byte", send, text="BatchRequestTooLong", QueueUrl=url, Entries=halves)


@probe("17", "A queue's MaximumMessageSize is 1,024 to 1,048,576 bytes, and is enforced")
def a_queues_own_limit(platform: Platform) -> None:
    for size in (1_023, MIB + 1):
        refused(f"a limit of {size:,}", platform.queue, MaximumMessageSize=size)
    refused("1,025 bytes", platform.send, platform.queue(MaximumMessageSize=1_024), "x" * 1_025)


@probe("18", "A message has at most 10 attributes")
def ten_attributes(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, MessageAttributes={f"name{n}": text("value") for n in range(10)})
    refused("11", platform.send, url, MessageAttributes={f"name{n}": text("value") for n in range(11)})


def accepted(platform: Platform, url: str, messages: dict[str, tuple[str, dict[str, Any]]]) -> list[str]:
    """Send the messages, by what is wrong with the body or the attributes; return what was accepted."""
    found = []
    for wrong, (body, attributes) in messages.items():
        try:
            platform.send(url, body, MessageAttributes=attributes)
        except ClientError:
            continue
        found.append(wrong)
    return found


@probe("18", "Names: letters, digits, _, -, single dots within, at most 256; not AWS's own")
def names_of_attributes(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, MessageAttributes={"a.B-c_9": text("value"), "n" * 256: text("value")})
    wrong = ["a b", "a!", "a§", ".a", "a.", "a..b", "AWS.a", "Amazon.a", "aws.a", "n" * 257]
    seen = accepted(platform, url, {each[:10]: ("a message", {each: text("value")}) for each in wrong})
    expect(seen, [], "accepted names")


@probe("18", "A name may have alphabetic characters beyond ASCII")
def names_beyond_ascii(platform: Platform) -> None:
    url = platform.queue()
    attribute = {"attr.1øßä": text("value")}
    platform.send(url, MessageAttributes=attribute)
    expect(platform.receive_one(url).get("MessageAttributes"), attribute, "received")


@probe("18", "A receive asks for attributes by name, by a prefix before .*, or for all with All, * or .*")
def requested_attributes(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=0)
    platform.send(url, MessageAttributes={"Help.Me": text("x"), "Hello": text("x"), "General": text("x")})

    def received(asked: str) -> list[str]:
        [message] = platform.gather(url, 1, platform.patience_seconds, MessageAttributeNames=[asked])
        return sorted(message.get("MessageAttributes", {}))

    everything = ["General", "Hello", "Help.Me"]
    expect([received(each) for each in ("All", "*", ".*")], [everything] * 3, "for all")
    expect([received("Hel.*"), received("Help")], [["Hello", "Help.Me"], []], "by prefix and by name")


@probe("35a", "The X-Amzn-Trace-Id of a send becomes the AWSTraceHeader of its message")
def the_trace_of_a_request(platform: Platform) -> None:
    url, trace = platform.queue(), "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    platform.send_traced(url, trace)
    expect(platform.receive_one(url)["Attributes"].get("AWSTraceHeader"), trace, "AWSTraceHeader")


@probe("18", "A String value is not empty")
def empty_values(platform: Platform) -> None:
    refused("an empty value", platform.send, platform.queue(), MessageAttributes={"name": text("")})


@probe("19", "A body has at least one character")
def empty_bodies(platform: Platform) -> None:
    refused("an empty body", platform.send, platform.queue(), "")


@probe("19", "Characters of a body: tab, line feed, carriage return, U+0020 to U+D7FF, U+E000 to U+FFFD, and above")
def characters_of_a_body(platform: Platform) -> None:
    url = platform.queue()
    allowed = "\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff"
    platform.send(url, allowed)
    expect(platform.receive_one(url)["Body"], allowed, "received")
    wrong = ["\x00", "\x0b", "\x1f", "\ufffe", "\uffff"]
    expect(accepted(platform, url, {f"U+{ord(each):04X}": (each, {}) for each in wrong}), [], "accepted")


@probe("19", "The same for a String value")
def characters_of_a_value(platform: Platform) -> None:
    wrong = ["\x00", "\x1f", "\uffff"]
    values = {f"U+{ord(each):04X}": ("a message", {"name": text(f"a{each}")}) for each in wrong}
    expect(accepted(platform, platform.queue(), values), [], "accepted")


@probe("21", "The response to a send has the MD5 of the body and of the attributes, with types and labels")
def digests(platform: Platform) -> None:
    attributes = {
        "text": text("é"),
        "label": text("7", "Number.int"),
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    url, body = platform.queue(), "a body, é"
    answer = platform.sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    expect(answer["MD5OfMessageBody"], md5(body.encode(), usedforsecurity=False).hexdigest(), "of the body")
    expect(answer["MD5OfMessageAttributes"], digest_of_attributes(attributes), "of the attributes")
