"""Facts 17 to 19 and 21: what a message may be, and what the answer to a send says."""

from hashlib import md5
from typing import Any

from botocore.exceptions import ClientError

from tarry.simulator.sqs.message import digest_of_attributes
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe
from tests.facts.worlds.world import World, expect

MIB = 1_048_576


def text(value: str, data_type: str = "String") -> dict[str, Any]:
    return {"DataType": data_type, "StringValue": value}


@probe("17", "A message is at most 1 MiB")
def a_mebibyte(world: World) -> None:
    url = world.queue()
    world.send(url, "x" * MIB)
    with refused("1 MiB and a byte"):
        world.send(url, "x" * (MIB + 1))


@probe("17", "Bytes count, not characters")
def bytes_not_characters(world: World) -> None:
    url = world.queue(MaximumMessageSize=1_024)
    world.send(url, "é" * 512)
    with refused("513 characters of two bytes in a queue of 1,024 bytes"):
        world.send(url, "é" * 513)


@probe("17", "Names, types and values of attributes count too")
def attributes_count(world: World) -> None:
    url = world.queue(MaximumMessageSize=1_024)
    attribute = {"name": text("value")}  # 4 + 6 + 5 bytes
    world.send(url, "x" * (1_024 - 15), MessageAttributes=attribute)
    with refused("1,025 bytes in a queue of 1,024"):
        world.send(url, "x" * (1_024 - 14), MessageAttributes=attribute)


@probe("17", "A batch request is at most 1 MiB in all")
def a_mebibyte_in_all(world: World) -> None:
    url = world.queue()
    halves = [{"Id": "1", "MessageBody": "x" * (MIB // 2)}, {"Id": "2", "MessageBody": "x" * (MIB // 2)}]
    world.sqs.send_message_batch(QueueUrl=url, Entries=halves)
    halves[1]["MessageBody"] += "x"
    with refused("1 MiB and a byte", "BatchRequestTooLong"):
        world.sqs.send_message_batch(QueueUrl=url, Entries=halves)


@probe("17", "A queue's MaximumMessageSize is 1,024 to 1,048,576 bytes, and is enforced")
def a_queues_own_limit(world: World) -> None:
    for size in (1_023, MIB + 1):
        with refused(f"a limit of {size:,}"):
            world.queue(MaximumMessageSize=size)
    url = world.queue(MaximumMessageSize=1_024)
    with refused("1,025 bytes"):
        world.send(url, "x" * 1_025)


@probe("18", "A message has at most 10 attributes")
def ten_attributes(world: World) -> None:
    url = world.queue()
    world.send(url, MessageAttributes={f"name{n}": text("value") for n in range(10)})
    with refused("11"):
        world.send(url, MessageAttributes={f"name{n}": text("value") for n in range(11)})


@probe("18", "Names: letters, digits, _, -, single dots within, at most 256; not AWS's own")
def names_of_attributes(world: World) -> None:
    url = world.queue()
    world.send(url, MessageAttributes={"a.B-c_9": text("value"), "n" * 256: text("value")})
    wrong = ["a b", "é", ".a", "a.", "a..b", "AWS.a", "Amazon.a", "aws.a", "n" * 257]
    expect([each[:10] for each in wrong if _is_accepted(world, url, {each: text("value")})], [], "accepted names")


@probe("18", "A String value is not empty")
def empty_values(world: World) -> None:
    url = world.queue()
    with refused("an empty value"):
        world.send(url, MessageAttributes={"name": text("")})


@probe("19", "A body has at least one character")
def empty_bodies(world: World) -> None:
    with refused("an empty body"):
        world.send(world.queue(), "")


@probe("19", "Characters of a body: tab, line feed, carriage return, U+0020 to U+D7FF, U+E000 to U+FFFD, and above")
def characters_of_a_body(world: World) -> None:
    url = world.queue()
    allowed = "\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff"
    world.send(url, allowed)
    expect(world.receive_one(url)["Body"], allowed, "received")
    wrong = ["\x00", "\x0b", "\x1f", "\ufffe", "\uffff"]
    expect([f"U+{ord(each):04X}" for each in wrong if _is_accepted(world, url, {}, each)], [], "accepted")


@probe("19", "The same for a String value")
def characters_of_a_value(world: World) -> None:
    url = world.queue()
    wrong = ["\x00", "\x1f", "\uffff"]
    accepted = [each for each in wrong if _is_accepted(world, url, {"name": text(f"a{each}")})]
    expect([f"U+{ord(each):04X}" for each in accepted], [], "accepted")


def _is_accepted(world: World, url: str, attributes: dict[str, Any], body: str = "a message") -> bool:
    try:
        world.send(url, body, MessageAttributes=attributes)
    except ClientError:
        return False
    return True


@probe("21", "The response to a send has the MD5 of the body and of the attributes, with types and labels")
def digests(world: World) -> None:
    attributes = {
        "text": text("é"),
        "label": text("7", "Number.int"),
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    url, body = world.queue(), "a body, é"
    answer = world.sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    expect(answer["MD5OfMessageBody"], md5(body.encode(), usedforsecurity=False).hexdigest(), "of the body")
    expect(answer["MD5OfMessageAttributes"], digest_of_attributes(attributes), "of the attributes")
