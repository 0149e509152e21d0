"""A random script of requests and waits against the model of SQS and against moto: both give the same answers.

`test_where_moto_differs.py` lists the differences. The script avoids them; comments mark where.
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

from tests.simulation.model_beside_moto import Handles, ModelBesideMoto, moto_client, side_by_side

VISIBILITY_SECONDS = 30
A_MOMENT = 0.001  # moto returns a message a moment after its visibility timeout has ended

DEAD_LETTER_QUEUES = {"orders": "dead", "ledger.fifo": None, "single.fifo": "dead.fifo"}
"""By source queue. A FIFO queue has one group here: moto begins with the group of the oldest message, the model with
the one whose first message has been visible longest."""

sources = st.sampled_from(tuple(DEAD_LETTER_QUEUES))
queues = st.sampled_from((*DEAD_LETTER_QUEUES, *DEAD_LETTER_QUEUES, "dead", "dead.fifo"))
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
    handles: Handles
    until: float


class ModelAndMoto(RuleBasedStateMachine):
    moto: Any

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self.both: ModelBesideMoto = self._open.enter_context(side_by_side(self.moto))
        self.sent = 0
        self.leases: dict[str, Lease] = {}
        self.duplicates: set[str] = set()

    def teardown(self) -> None:
        self._open.close()

    @initialize()
    def make_queues(self) -> None:
        for queue, dead_letter in DEAD_LETTER_QUEUES.items():
            if dead_letter is not None:
                self.both.queue(dead_letter)
            default_delay = {} if queue.endswith(".fifo") else {"DelaySeconds": "5"}
            self.both.queue(queue, dead_letter, **default_delay)
            for _ in range(3):
                self.both.request("SendMessage", queue, **self._new(queue, 0, {}))

    # sending

    def _new(self, queue: str, delay: int | None, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return a message with a unique body, which identifies it in the model and in moto."""
        self.sent += 1
        message: dict[str, Any] = {"MessageBody": f"m{self.sent}"}
        if queue.endswith(".fifo"):
            message |= {"MessageGroupId": "one", "MessageDeduplicationId": f"m{self.sent}"}
        elif delay is not None:
            message["DelaySeconds"] = delay
        if attributes:
            message["MessageAttributes"] = attributes
        return message

    @rule(queue=sources, delay=delays, attributes=attributes)
    def send(self, queue: str, delay: int | None, attributes: dict[str, Any]) -> None:
        ours, moto = self.both.request("SendMessage", queue, **self._new(queue, delay, attributes))
        assert _digests(ours) == _digests(moto)

    @rule(queue=sources, count=st.integers(1, 4), delay=delays, wrong=st.booleans())
    def send_batch(self, queue: str, count: int, delay: int | None, wrong: bool) -> None:
        entries = [{"Id": str(place), **self._new(queue, delay, {})} for place in range(count)]
        if wrong and not queue.endswith(".fifo"):  # moto would refuse a whole FIFO batch
            entries[0]["DelaySeconds"] = 901
        ours, moto = self.both.request("SendMessageBatch", queue, Entries=entries)
        accepted = [[_digests(entry) for entry in answer.get("Successful", [])] for answer in (ours, moto)]
        assert accepted[0] == accepted[1]
        assert _failed(ours) == _failed(moto)

    @rule(data=st.data())
    def send_a_fifo_duplicate(self, data: st.DataObject) -> None:
        """Send with the deduplication id of a message that is still in the queue: moto forgets the others."""
        present = [message.body for message in self.both.model.peek("ledger.fifo")]
        bodies = [body for body in present if body not in self.duplicates]
        if not bodies:
            return
        body = data.draw(st.sampled_from(bodies))
        message = self._new("ledger.fifo", None, {}) | {"MessageDeduplicationId": body}
        self.both.request("SendMessage", "ledger.fifo", **message)
        if len(self.both.model.peek("ledger.fifo")) > len(present):  # the 5 minutes were over: two have that id now
            self.duplicates |= {body, message["MessageBody"]}

    # receiving

    @rule(queue=queues, limit=st.integers(1, 10), visibility=st.sampled_from((None, 0, 1, 5)))
    def receive(self, queue: str, limit: int, visibility: int | None) -> None:
        if queue.endswith(".fifo"):
            limit = 1  # moto returns two messages of a group only once both are visible, and the last one first
        more = {} if visibility is None else {"VisibilityTimeout": visibility}
        ours, moto = self.both.receive(queue, limit, **more)
        assert [_comparable(message, queue) for message in ours] == [_comparable(message, queue) for message in moto]
        until = self.both.now() + (VISIBILITY_SECONDS if visibility is None else visibility)
        for from_model, from_moto in zip(ours, moto, strict=True):
            handles = Handles(from_model["ReceiptHandle"], from_moto["ReceiptHandle"])
            self.leases[from_model["Body"]] = Lease(queue, handles, until)

    @rule(queue=sources, times=st.integers(1, 3))
    def receive_and_let_expire(self, queue: str, times: int) -> None:
        """Receive as a consumer that always fails, so that messages reach the dead-letter queue."""
        for _ in range(times):
            self.receive(queue, 10, None)
            self.both.wait(VISIBILITY_SECONDS + A_MOMENT)

    # settling, with the latest handle: moto accepts old ones too

    def _leased(self) -> list[str]:
        """Return the messages with a handle; on FIFO without the expired handles, which only moto accepts."""
        now = self.both.now()
        model = self.both.model
        present = {(queue, message.body) for queue in model.queues() for message in model.peek(queue)}
        return [
            body
            for body, lease in self.leases.items()
            if (lease.queue, body) in present and (lease.until > now or not lease.queue.endswith(".fifo"))
        ]

    def _some_leased(self, data: st.DataObject, limit: int) -> tuple[str, list[str]]:
        """Return a queue, and some of its messages with a handle."""
        first = data.draw(st.sampled_from(leased := self._leased()))
        queue = self.leases[first].queue
        same_queue = [body for body in leased if self.leases[body].queue == queue]
        return queue, data.draw(st.lists(st.sampled_from(same_queue), unique=True, min_size=1, max_size=limit))

    @precondition(_leased)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(self._leased()))]
        for _ in ("once", "twice"):
            ours, moto = self.both.request("DeleteMessage", lease.queue, ReceiptHandle=lease.handles)
            assert ours == moto == {}

    @precondition(_leased)
    @rule(data=st.data())
    def delete_batch(self, data: st.DataObject) -> None:
        queue, bodies = self._some_leased(data, limit=9)
        entries = [{"Id": body, "ReceiptHandle": self.leases[body].handles} for body in bodies]
        entries.append({"Id": "none", "ReceiptHandle": "no handle"})
        ours, moto = self.both.request("DeleteMessageBatch", queue, Entries=entries)
        assert ours["Successful"] == moto["Successful"]
        assert _failed(ours) == _failed(moto)

    @precondition(_leased)
    @rule(seconds=visibilities, data=st.data())
    def change_visibility(self, seconds: int, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(self._leased()))]
        asked = {"ReceiptHandle": lease.handles, "VisibilityTimeout": seconds}
        ours, moto = self.both.request("ChangeMessageVisibility", lease.queue, **asked)
        assert ours == moto == {}
        lease.until = self.both.now() + seconds

    @precondition(_leased)
    @rule(seconds=visibilities, data=st.data())
    def change_visibility_batch(self, seconds: int, data: st.DataObject) -> None:
        queue, bodies = self._some_leased(data, limit=8)
        asked = [(body, self.leases[body].handles, seconds) for body in bodies]
        asked += [("none", "no handle", seconds), ("long", self.leases[bodies[0]].handles, 43_201)]
        entries = [{"Id": id, "ReceiptHandle": handle, "VisibilityTimeout": each} for id, handle, each in asked]
        ours, moto = self.both.request("ChangeMessageVisibilityBatch", queue, Entries=entries)
        assert ours["Successful"] == moto["Successful"]
        assert _failed(ours) == _failed(moto)
        for body in bodies:
            self.leases[body].until = self.both.now() + seconds

    # time

    @rule(seconds=st.sampled_from((1, 5, 29, 30, 60, 300, 600)))
    def wait(self, seconds: int) -> None:
        self.both.wait(seconds)

    @invariant()
    def both_have_the_same_messages(self) -> None:
        self.both.wait(A_MOMENT)
        for queue in self.both.model.queues():
            moto, depth = self.both.in_moto(queue), self.both.model.depth(queue)
            ours = [(message.body, message.receive_count) for message in self.both.model.peek(queue)]
            assert ours == [(message.body, message.approximate_receive_count) for message in moto._messages]
            assert depth.ready == moto.approximate_number_of_messages
            assert depth.in_flight == moto.approximate_number_of_messages_not_visible
            assert depth.delayed == moto.approximate_number_of_messages_delayed


def _digests(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a send without the generated ids."""
    return {name: value for name, value in answer.items() if name not in ("MessageId", "SequenceNumber")}


def _failed(answer: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer.get("Failed", [])]


def _comparable(message: dict[str, Any], queue: str) -> dict[str, Any]:
    """Return a received message without generated fields, and without those of a dead letter that moto lacks."""
    different = {"SenderId", "SequenceNumber", "DeadLetterQueueSourceArn"}
    if queue == "dead.fifo":
        different |= {"SentTimestamp", "MessageDeduplicationId"}
    comparable = {name: value for name, value in message.items() if name not in ("MessageId", "ReceiptHandle")}
    comparable["Attributes"] = {name: value for name, value in message["Attributes"].items() if name not in different}
    return comparable


def test_the_model_and_moto_give_the_same_answers() -> None:
    with moto_client() as ModelAndMoto.moto:
        run_state_machine_as_test(
            ModelAndMoto,
            settings=settings(
                max_examples=25,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
