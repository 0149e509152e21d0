"""One script of random requests and waits, played to the model of SQS and to moto: they answer alike.

Where they differ is said in `test_where_moto_differs.py`; the script stays clear of it, and says where.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.simulation.both import Both, Pair, moto_client, side_by_side

VISIBILITY_SECONDS = 30
A_MOMENT = 0.001  # moto shows a message a moment after its visibility has ended

DEAD_LETTER_QUEUES = {"orders": "dead", "ledger.fifo": None, "single.fifo": "dead.fifo"}
"""By source. Of the FIFO queues one has groups and one has a dead-letter queue: when a group's head goes there, moto
goes on with the oldest message, the model with the group."""

sources = st.sampled_from(tuple(DEAD_LETTER_QUEUES))
queues = st.sampled_from((*DEAD_LETTER_QUEUES, *DEAD_LETTER_QUEUES, "dead", "dead.fifo"))
groups = st.sampled_from(("a", "b"))
delays = st.sampled_from((None, None, 0, 5, 60))
visibilities = st.sampled_from((0, 0, 1, 10, 60, 600))  # far below 12 hours, which moto counts from the send
attributes = st.dictionaries(
    st.sampled_from(("one", "two.parts", "three")),
    st.one_of(
        st.builds(lambda value: {"DataType": "String", "StringValue": value}, st.sampled_from(("x", "é", "long " * 9))),
        st.builds(lambda value: {"DataType": "Number.int", "StringValue": str(value)}, st.integers(-5, 5)),
        st.builds(lambda value: {"DataType": "Binary", "BinaryValue": value}, st.binary(min_size=1, max_size=5)),
    ),
    max_size=3,
)


@dataclass
class Lease:
    """The latest receive of a message."""

    queue: str
    handles: Pair
    until: float


class ModelAndMoto(RuleBasedStateMachine):
    moto: Any

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self.both: Both = self._open.enter_context(side_by_side(self.moto))
        self.sent = 0
        self.leases: dict[str, Lease] = {}
        self.sent_again: set[str] = set()

    def teardown(self) -> None:
        self._open.close()

    @initialize()
    def make_queues(self) -> None:
        for queue, dead_letter in DEAD_LETTER_QUEUES.items():
            if dead_letter is not None:
                self.both.queue(dead_letter)
            default_delay = {} if queue.endswith(".fifo") else {"DelaySeconds": "5"}
            self.both.queue(queue, dead_letter, **default_delay)
            for group in ("a", "b", "a"):
                self.both.ask("SendMessage", queue, **self._new(queue, group, 0, {}))

    # sending

    def _new(self, queue: str, group: str, delay: int | None, attributes: dict[str, Any]) -> dict[str, Any]:
        """A message with a body of its own, by which it is known in both."""
        self.sent += 1
        message: dict[str, Any] = {"MessageBody": f"m{self.sent}"}
        if queue.endswith(".fifo"):
            group = "one" if queue == "single.fifo" else group
            message |= {"MessageGroupId": group, "MessageDeduplicationId": f"m{self.sent}"}
        elif delay is not None:
            message["DelaySeconds"] = delay
        if attributes:
            message["MessageAttributes"] = attributes
        return message

    @rule(queue=sources, group=groups, delay=delays, attributes=attributes)
    def send(self, queue: str, group: str, delay: int | None, attributes: dict[str, Any]) -> None:
        ours, moto = self.both.ask("SendMessage", queue, **self._new(queue, group, delay, attributes))
        assert _digests(ours) == _digests(moto)

    @rule(queue=sources, count=st.integers(1, 4), group=groups, delay=delays, wrong=st.booleans())
    def send_batch(self, queue: str, count: int, group: str, delay: int | None, wrong: bool) -> None:
        entries = [{"Id": str(place), **self._new(queue, group, delay, {})} for place in range(count)]
        if wrong and not queue.endswith(".fifo"):  # moto refuses a whole FIFO batch for it
            entries[0]["DelaySeconds"] = 901
        ours, moto = self.both.ask("SendMessageBatch", queue, Entries=entries)
        assert [_digests(entry) for entry in ours["Successful"]] == [_digests(entry) for entry in moto["Successful"]]
        assert _failed(ours) == _failed(moto)

    @rule(data=st.data(), group=groups)
    def send_on_fifo_again(self, data: st.DataObject, group: str) -> None:
        """With a deduplication id whose message is still in its queue: moto forgets the others."""
        there = [message.body for message in self.both.model.peek("ledger.fifo")]
        bodies = [body for body in there if body not in self.sent_again]
        if not bodies:
            return
        body = data.draw(st.sampled_from(bodies))
        message = self._new("ledger.fifo", group, None, {}) | {"MessageDeduplicationId": body}
        self.both.ask("SendMessage", "ledger.fifo", **message)
        if len(self.both.model.peek("ledger.fifo")) > len(there):  # its 5 minutes were over: two have that id now
            self.sent_again |= {body, message["MessageBody"]}

    # receiving

    @rule(queue=queues, most=st.integers(1, 10), visibility=st.sampled_from((None, 0, 1, 5)))
    def receive(self, queue: str, most: int, visibility: int | None) -> None:
        if queue.endswith(".fifo"):
            most = 1  # of two of a group in flight, moto hides both until both are visible, and shows the last first
        more = {} if visibility is None else {"VisibilityTimeout": visibility}
        ours, moto = self.both.receive(queue, most, **more)
        assert [_told(message, queue) for message in ours] == [_told(message, queue) for message in moto]
        until = self.both.now() + (VISIBILITY_SECONDS if visibility is None else visibility)
        for mine, its in zip(ours, moto, strict=True):
            self.leases[mine["Body"]] = Lease(queue, Pair(mine["ReceiptHandle"], its["ReceiptHandle"]), until)

    @rule(queue=sources, times=st.integers(1, 3))
    def receive_in_vain(self, queue: str, times: int) -> None:
        """As a consumer that always fails: so messages come to the dead-letter queue."""
        for _ in range(times):
            self.receive(queue, 10, None)
            self.both.wait(VISIBILITY_SECONDS + A_MOMENT)

    # settling, with the latest handle: moto takes old ones too

    def _held(self) -> list[str]:
        """The messages with a handle; on FIFO moto takes those that have expired too."""
        now = self.both.now()
        there = {(queue, message.body) for queue in self.both.model.queues() for message in self.both.model.peek(queue)}
        return [
            body
            for body, lease in self.leases.items()
            if (lease.queue, body) in there and (lease.until > now or not lease.queue.endswith(".fifo"))
        ]

    def _some_held(self, data: st.DataObject, most: int) -> tuple[str, list[str]]:
        """A queue, and some messages of it with a handle."""
        first = data.draw(st.sampled_from(held := self._held()))
        queue = self.leases[first].queue
        beside = [body for body in held if self.leases[body].queue == queue]
        return queue, data.draw(st.lists(st.sampled_from(beside), unique=True, min_size=1, max_size=most))

    @precondition(_held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(self._held()))]
        for _ in ("first", "and again"):
            ours, moto = self.both.ask("DeleteMessage", lease.queue, ReceiptHandle=lease.handles)
            assert ours == moto == {}

    @precondition(_held)
    @rule(data=st.data())
    def delete_batch(self, data: st.DataObject) -> None:
        queue, bodies = self._some_held(data, most=9)
        entries = [{"Id": body, "ReceiptHandle": self.leases[body].handles} for body in bodies]
        entries.append({"Id": "none", "ReceiptHandle": "no handle"})
        ours, moto = self.both.ask("DeleteMessageBatch", queue, Entries=entries)
        assert ours["Successful"] == moto["Successful"]
        assert _failed(ours) == _failed(moto)

    @precondition(_held)
    @rule(seconds=visibilities, data=st.data())
    def change_visibility(self, seconds: int, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(self._held()))]
        asked = {"ReceiptHandle": lease.handles, "VisibilityTimeout": seconds}
        ours, moto = self.both.ask("ChangeMessageVisibility", lease.queue, **asked)
        assert ours == moto == {}
        lease.until = self.both.now() + seconds

    @precondition(_held)
    @rule(seconds=visibilities, data=st.data())
    def change_visibility_batch(self, seconds: int, data: st.DataObject) -> None:
        queue, bodies = self._some_held(data, most=8)
        asked = [(body, self.leases[body].handles, seconds) for body in bodies]
        asked += [("none", "no handle", seconds), ("long", self.leases[bodies[0]].handles, 43_201)]
        entries = [{"Id": id, "ReceiptHandle": handle, "VisibilityTimeout": each} for id, handle, each in asked]
        ours, moto = self.both.ask("ChangeMessageVisibilityBatch", queue, Entries=entries)
        assert ours["Successful"] == moto["Successful"]
        assert _failed(ours) == _failed(moto)
        for body in bodies:
            self.leases[body].until = self.both.now() + seconds

    # time

    @rule(seconds=st.sampled_from((1, 5, 29, 30, 60, 300, 600)))
    def wait(self, seconds: int) -> None:
        self.both.wait(seconds)

    @invariant()
    def they_hold_the_same(self) -> None:
        self.both.wait(A_MOMENT)
        for queue in self.both.model.queues():
            moto, depth = self.both.in_moto(queue), self.both.model.depth(queue)
            ours = [(message.body, message.receive_count) for message in self.both.model.peek(queue)]
            assert ours == [(message.body, message.approximate_receive_count) for message in moto._messages]
            assert depth.ready == moto.approximate_number_of_messages
            assert depth.in_flight == moto.approximate_number_of_messages_not_visible
            assert depth.delayed == moto.approximate_number_of_messages_delayed


def _digests(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer to a send, without the ids that each makes for itself."""
    return {name: value for name, value in answer.items() if name not in ("MessageId", "SequenceNumber")}


def _failed(answer: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]]


def _told(message: dict[str, Any], queue: str) -> dict[str, Any]:
    """A received message, without what each makes for itself and what moto does not know of a dead letter."""
    unlike = {"SenderId", "SequenceNumber", "DeadLetterQueueSourceArn"}
    if queue == "dead.fifo":
        unlike |= {"SentTimestamp", "MessageDeduplicationId"}
    told = {name: value for name, value in message.items() if name not in ("MessageId", "ReceiptHandle")}
    told["Attributes"] = {name: value for name, value in message["Attributes"].items() if name not in unlike}
    return told


def test_they_answer_alike() -> None:
    with moto_client() as ModelAndMoto.moto:
        run_state_machine_as_test(
            ModelAndMoto,
            settings=settings(
                max_examples=40,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
