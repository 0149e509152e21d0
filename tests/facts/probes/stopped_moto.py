"""Facts 30 to 32: moto under a clock that stands still."""

import threading
from typing import cast

from tests.facts.platforms.moto import A_MOMENT, MotoPlatform
from tests.facts.platforms.platform import Platform, expect, refused
from tests.facts.registry import probe

REAL_SECONDS = 0.2


@probe("30", "A visibility of 30 s ends after 30 s, not at 30 s", needs=("stopped moto",))
def a_visibility_ends_after_its_time(platform: Platform) -> None:
    moto = cast("MotoPlatform", platform)
    url = moto.queue(VisibilityTimeout=30)
    moto.send(url)
    moto.receive_one(url)
    moto.move(30)
    expect(moto.receive(url), [], "received at 30 s")
    moto.move(A_MOMENT)
    moto.receive_one(url)


@probe("30", "A delay of 10 s ends at 10 s", needs=("stopped moto",))
def a_delay_ends_at_its_time(platform: Platform) -> None:
    moto = cast("MotoPlatform", platform)
    url = moto.queue()
    moto.send(url, DelaySeconds=10)
    moto.move(10 - A_MOMENT)
    expect(moto.receive(url), [], "received before 10 s")
    moto.move(A_MOMENT)
    moto.receive_one(url)


@probe("31", "A long poll of an empty queue does not return while the clock stands", needs=("stopped moto",))
def a_long_poll_hangs(platform: Platform) -> None:
    moto = cast("MotoPlatform", platform)
    url = moto.queue()
    polling = threading.Thread(target=lambda: moto.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1), daemon=True)
    polling.start()
    polling.join(REAL_SECONDS + 1)
    waits = polling.is_alive()
    moto.move(2)
    polling.join(10)
    assert waits, "it returned while the clock stood"
    assert not polling.is_alive(), "it did not return when the clock was moved"


@probe("32", "The 12 hours count from the send, and one such error fails the batch request", needs=("stopped moto",))
def twelve_hours_from_the_send(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=30)
    platform.send(url)
    platform.wait(43_200)
    message = platform.receive_one(url)
    refused("0 s", platform.change_visibility, url, message, 0)
    platform.send(url, "young")
    young = platform.receive_one(url)
    entries = [
        {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
        for n, each in enumerate((message, young))
    ]
    refused("the batch", platform.sqs.change_message_visibility_batch, QueueUrl=url, Entries=entries)
