"""Facts 17 to 19 and 21: the limits of a message, and the answer to a send."""

from hashlib import md5
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.sqs.message import digest_of_attributes
from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe

MIB = 1_048_576


def text(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"DataType": data_type, "StringValue": value}


@probe("17", "A message is at most 1 MiB")
def a_mebibyte(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, "x" * MIB)
    with refused("1 MiB and a byte"):
        platform.send(url, "x" * (MIB + 1))


@probe("17", "Bytes count, not characters")
def bytes_not_characters(platform: Platform) -> None:
    url = platform.queue(MaximumMessageSize=1_024)
    platform.send(url, "é" * 512)
    with refused("513 characters of two bytes in a queue of 1,024 bytes"):
        platform.send(url, "é" * 513)


@probe("17", "Names, types and values of attributes count too")
def attributes_count(platform: Platform) -> None:
    url = platform.queue(MaximumMessageSize=1_024)
    attribute = {"name": text("value")}  # 4 + 6 + 5 bytes
    platform.send(url, "x" * (1_024 - 15), MessageAttributes=attribute)
    with refused("1,025 bytes in a queue of 1,024"):
        platform.send(url, "x" * (1_024 - 14), MessageAttributes=attribute)


@probe("17", "A batch request is at most 1 MiB in all")
def a_mebibyte_in_all(platform: Platform) -> None:
    url = platform.queue()
    halves = [{"Id": "1", "MessageBody": "x" * (MIB // 2)}, {"Id": "2", "MessageBody": "x" * (MIB // 2)}]
    platform.sqs.send_message_batch(QueueUrl=url, Entries=halves)
    halves[1]["MessageBody"] += "x"
    with refused("1 MiB and a byte", "BatchRequestTooLong"):
        platform.sqs.send_message_batch(QueueUrl=url, Entries=halves)


@probe("17", "A queue's MaximumMessageSize is 1,024 to 1,048,576 bytes, and is enforced")
def a_queues_own_limit(platform: Platform) -> None:
    for size in (1_023, MIB + 1):
        with refused(f"a limit of {size:,}"):
            platform.queue(MaximumMessageSize=size)
    url = platform.queue(MaximumMessageSize=1_024)
    with refused("1,025 bytes"):
        platform.send(url, "x" * 1_025)


@probe("18", "A message has at most 10 attributes")
def ten_attributes(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, MessageAttributes={f"name{n}": text("value") for n in range(10)})
    with refused("11"):
        platform.send(url, MessageAttributes={f"name{n}": text("value") for n in range(11)})


@probe("18", "Names: letters, digits, _, -, single dots within, at most 256; not AWS's own")
def names_of_attributes(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, MessageAttributes={"a.B-c_9": text("value"), "n" * 256: text("value")})
    wrong = ["a b", "a!", "a§", ".a", "a.", "a..b", "AWS.a", "Amazon.a", "aws.a", "n" * 257]
    expect([each[:10] for each in wrong if _is_accepted(platform, url, {each: text("value")})], [], "accepted names")


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
    url = platform.queue()
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    platform.send_traced(url, trace)
    expect(platform.receive_one(url)["Attributes"].get("AWSTraceHeader"), trace, "AWSTraceHeader")


@probe("18", "A String value is not empty")
def empty_values(platform: Platform) -> None:
    url = platform.queue()
    with refused("an empty value"):
        platform.send(url, MessageAttributes={"name": text("")})


@probe("19", "A body has at least one character")
def empty_bodies(platform: Platform) -> None:
    with refused("an empty body"):
        platform.send(platform.queue(), "")


@probe("19", "Characters of a body: tab, line feed, carriage return, U+0020 to U+D7FF, U+E000 to U+FFFD, and above")
def characters_of_a_body(platform: Platform) -> None:
    url = platform.queue()
    allowed = "\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff"
    platform.send(url, allowed)
    expect(platform.receive_one(url)["Body"], allowed, "received")
    wrong = ["\x00", "\x0b", "\x1f", "\ufffe", "\uffff"]
    expect([f"U+{ord(each):04X}" for each in wrong if _is_accepted(platform, url, {}, each)], [], "accepted")


@probe("19", "The same for a String value")
def characters_of_a_value(platform: Platform) -> None:
    url = platform.queue()
    wrong = ["\x00", "\x1f", "\uffff"]
    accepted = [each for each in wrong if _is_accepted(platform, url, {"name": text(f"a{each}")})]
    expect([f"U+{ord(each):04X}" for each in accepted], [], "accepted")


def _is_accepted(platform: Platform, url: str, attributes: dict[str, Any], body: str = "a message") -> bool:
    try:
        platform.send(url, body, MessageAttributes=attributes)
    except ClientError:
        return False
    return True


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
