"""One script against all implementations, and the differences between their answers and those of the model."""

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.referee.implementations import REGION, Clock, Implementation, Model, Refusal
from tests.simulation.referee.script import (
    DEAD_LETTER_ROLES,
    GONE,
    MAX_RECEIVES,
    NOT_MADE,
    OF_ANOTHER_ACCOUNT,
    ROLES,
    SOURCES,
    Handle,
    HandleKind,
    Name,
    OfType,
    Redrive,
    Step,
    attributes_of,
    is_fifo,
)
from tests.wire import ACCOUNT

NAME_REUSE_SECONDS = PURGE_SECONDS = 60
A_MOMENT = 0.001
"""The time that a step takes: in moto a visibility timeout ends a moment late."""
RECENT_RECEIVES = 100
TIMESTAMPS = ("CreatedTimestamp", "LastModifiedTimestamp")

Outcome = dict[tuple[str, str], Any]
"""The parts of an answer, by the entry or message and the name of the part; without a name: accepted, or the error."""
AFTER = "after"
"""The subject of a difference that the answer to a step with a fault may not show, but that later answers may."""
UNREACHED = "exhausted messages that it does not reach"
AHEAD_OF_ITS_GROUP = "an exhausted message ahead of others of its group"
"""In place of a fault: what a receive finds, or leaves behind."""
UNREAL = ("invalid", "empty")


@dataclass(frozen=True)
class Difference:
    """A difference between an answer of an implementation and that of the model."""

    who: str
    operation: str
    queue: str
    fault: str | None
    subject: str
    """The part of the answer: empty if one of them refuses the request or the entry."""
    ours: Any
    theirs: Any
    step: int
    fifo: str
    """The contents of a FIFO queue: ``one message``, ``one group``, ``several groups``; empty for a standard queue."""

    def __str__(self) -> str:
        fault = f" with {self.fault}" if self.fault else ""
        state = f" ({self.fifo})" if self.fifo else ""
        part = f", {self.subject}" if self.subject else ""
        return (
            f"step {self.step}, {self.operation}{fault} on {self.queue or 'no queue'}{state}{part}: "
            f"the model {_short(self.ours)}, {self.who} {_short(self.theirs)}"
        )


@dataclass(frozen=True)
class Received:
    """A message that was received, with the receipt handle of each implementation."""

    queue: str
    delivery_id: str
    receive_count: int
    handles: Mapping[str, str]


class Play:
    """The implementations with the same queues, and what is needed to continue a script.

    After a difference that lasts, the answers of that implementation for that queue are not compared any more, until
    the queue is renewed.
    """

    def __init__(self, implementations: Mapping[str, Implementation]) -> None:
        self._implementations = implementations
        model = implementations["model"]
        assert isinstance(model, Model)
        self._clock = Clock()
        for each in implementations.values():
            each.reset(self._clock)
        self._model = model.sqs
        self._generation = 0
        self._names: dict[str, str] = {NOT_MADE: "never"}
        self._deleted_at = float("inf")
        self._purged_at: dict[str, float] = {}
        self._out: set[tuple[str, str]] = set()
        self._ids: dict[tuple[str, str], str] = {}
        self._received: list[Received] = []
        self.steps: list[Step] = []
        self.current: list[Step] = []
        """The step that is being taken."""
        self.compared: Counter[str] = Counter()
        for role in SOURCES:
            self._renew(role)

    def take(self, steps: Iterable[Step], count: int) -> Iterator[Difference]:
        """Take this many steps; steps for which there is no receipt handle are left out. Yield the differences."""
        for step in steps:
            if len(self.steps) == count:
                return
            yield from self._take(step)

    def leave_out(self, difference: Difference) -> None:
        """Do not compare the answers of the implementation for this queue and the one it is dead-lettered to."""
        queue = "orders" if difference.queue == OF_ANOTHER_ACCOUNT else difference.queue
        family = next((pair for pair in DEAD_LETTER_ROLES.items() if queue in pair), (queue,))
        self._out |= {(difference.who, self._names.get(role, role)) for role in family}
        others = self._implementations.keys() - {"model"}
        if queue in ROLES and all((who, self._names[queue]) in self._out for who in others):
            self._renew(family[0])

    # steps

    def _take(self, step: Step) -> Iterator[Difference]:
        if step.operation == "wait":
            self._clock.wait(step.parameters["seconds"])
        elif step.operation == "renew":
            self._renew(step.queue)
        elif step.queue == GONE and not self._deleted_at <= self._clock.now() < self._deleted_at + NAME_REUSE_SECONDS:
            return
        else:
            found = self._with_handles(step)
            if found is None:
                return
            step, handles = found
            step = self._with_fault_of_time(step)
            self.current = [step]
            yield from self._request(step, handles)
            self.current = []
        self.steps.append(step)
        self._clock.wait(A_MOMENT)

    def _renew(self, role: str) -> None:
        for each in (role, DEAD_LETTER_ROLES[role]):
            if each in self._names:
                self._names[GONE], self._deleted_at = self._names[each], self._clock.now()
                self._all("DeleteQueue", {"QueueUrl": self._url(each)})
        self._generation += 1
        for each in (DEAD_LETTER_ROLES[role], role):
            stem, dot, suffix = each.partition(".")
            self._names[each] = f"{stem}-{self._generation}{dot}{suffix}"
            attributes = self._resolved(attributes_of(each), "", {})
            self._all("CreateQueue", {"QueueName": self._names[each], "Attributes": attributes})

    def _all(self, operation: str, parameters: dict[str, Any]) -> None:
        for each in self._implementations.values():
            each.call(operation, parameters)

    def _request(self, step: Step, handles: Mapping[Handle, Received]) -> Iterator[Difference]:
        name = self._names.get(step.queue, step.queue)
        fifo = self._fifo(name)
        was_exhausted = self._has_exhausted(step.queue)
        answers: dict[str, Outcome] = {}
        received: dict[str, list[dict[str, Any]]] = {}
        for who, implementation in self._implementations.items():
            if (who, name) in self._out:
                continue
            parameters = self._resolved(step.parameters, who, handles)
            if step.operation not in ("CreateQueue", "GetQueueUrl"):
                parameters["QueueUrl"] = self._url(step.queue)
            try:
                answer = implementation.call(step.operation, parameters)
            except Refusal as refusal:
                answers[who] = {("", ""): refusal.code}
            else:
                received[who] = answer.get("Messages", [])
                answers[who] = self._outcome(who, step, answer)
        self._remember(name, received)
        self.compared.update(answers.keys() - {"model"})
        causes = self._causes(step, was_exhausted, fifo)
        for who, theirs in answers.items():
            for cause in causes if who != "model" else ():
                yield Difference(who, step.operation, step.queue, cause, AFTER, None, None, len(self.steps), fifo)
            for (entry, subject), ours, other in _differences(answers["model"], theirs):
                if (who, name) in self._out:
                    break
                fault = step.fault if not entry or step.at in ("", entry) else None
                place = len(self.steps)
                yield Difference(who, step.operation, step.queue, fault, subject, ours, other, place, fifo)

    def _causes(self, step: Step, was_exhausted: bool, fifo: str) -> list[str]:
        """Return why later answers may differ although those to this step do not."""
        causes = [] if step.fault is None else [step.fault]
        if step.operation == "ReceiveMessage" and self._has_exhausted(step.queue):
            causes.append(UNREACHED)
        if step.operation == "ReceiveMessage" and was_exhausted and fifo in ("one group", "several groups"):
            causes.append(AHEAD_OF_ITS_GROUP)
        return causes

    def _has_exhausted(self, queue: str) -> bool:
        """Return whether the next receives from a source dead-letter a message."""
        messages = self._model.peek(self._names[queue]) if queue in SOURCES else []
        now = self._clock.now()
        return any(each.receive_count >= MAX_RECEIVES and each.visible_at <= now for each in messages)

    def _fifo(self, queue: str) -> str:
        messages = self._model.peek(queue) if is_fifo(queue) and queue in self._model.queues() else []
        if len(messages) <= 1:
            return "one message" if is_fifo(queue) else ""
        return "several groups" if len({message.group for message in messages}) > 1 else "one group"

    def _outcome(self, who: str, step: Step, answer: dict[str, Any]) -> Outcome:
        """Return the parts of an answer that can be compared."""
        outcome: Outcome = {("", ""): "accepted"}
        match step.operation:
            case "SendMessage":
                outcome |= self._sent(who, answer, "")
            case "SendMessageBatch" | "DeleteMessageBatch" | "ChangeMessageVisibilityBatch":
                outcome |= self._entries(who, answer)
            case "ReceiveMessage":
                outcome |= self._messages(who, answer)
            case "GetQueueAttributes":
                attributes = answer.get("Attributes", {})
                outcome |= {("", name): value for name, value in attributes.items() if name not in TIMESTAMPS}
            case "GetQueueUrl" | "CreateQueue":
                outcome["", "QueueUrl"] = answer["QueueUrl"].rpartition("/")[2]
            case "ListQueueTags":
                outcome["", "Tags"] = answer.get("Tags", {})
        return outcome

    def _entries(self, who: str, answer: dict[str, Any]) -> Outcome:
        """Return the parts of an answer to a batch request. Only some implementations answer an empty list."""
        outcome: Outcome = {}
        for each in answer.get("Successful", []):
            outcome[each["Id"], ""] = "accepted"
            if "MessageId" in each:
                outcome |= self._sent(who, each, each["Id"])
        for each in answer.get("Failed", []):
            outcome[each["Id"], ""] = each["Code"] if each["SenderFault"] else f"{each['Code']}, a fault of SQS"
        return outcome

    def _messages(self, who: str, answer: dict[str, Any]) -> Outcome:
        """Return the received messages, without what is random: handles, sequence numbers, and the sender's id."""
        messages = answer.get("Messages", [])
        names = [self._ids.get((who, each["MessageId"]), f"unknown: {each['Body']}") for each in messages]
        outcome: Outcome = {("", "Messages"): names}
        for name, message in zip(names, messages, strict=True):
            for key, value in {**message, **message["Attributes"]}.items():
                if key not in ("MessageId", "ReceiptHandle", "SenderId", "Attributes"):
                    outcome[name, key] = "any" if key == "SequenceNumber" else value
        return outcome

    def _sent(self, who: str, answer: dict[str, Any], entry: str) -> Outcome:
        """Return the parts of an answer to a send. A message is named after the step and the entry that sent it."""
        parts = {(entry, name): value for name, value in answer.items() if name.startswith("MD5")}
        if "SequenceNumber" in answer:
            parts[entry, "SequenceNumber"] = "any"
        name = self._ids.setdefault((who, answer["MessageId"]), f"{len(self.steps)}{entry}")
        return parts | {(entry, "MessageId"): name}

    def _with_fault_of_time(self, step: Step) -> Step:
        """Note a purge, and name the fault of one that is too early."""
        if step.operation != "PurgeQueue" or step.fault is not None:
            return step
        name, now = self._names[step.queue], self._clock.now()
        if now < self._purged_at.get(name, -PURGE_SECONDS) + PURGE_SECONDS:
            return replace(step, fault="a second purge within 60 s")
        self._purged_at[name] = now
        return step

    # handles

    def _remember(self, queue: str, received: Mapping[str, list[dict[str, Any]]]) -> None:
        for place, ours in enumerate(received.get("model", [])):
            handles = {
                who: messages[place]["ReceiptHandle"] for who, messages in received.items() if place < len(messages)
            }
            count = int(ours["Attributes"]["ApproximateReceiveCount"])
            self._received.append(Received(queue, ours["MessageId"], count, handles))
        del self._received[:-RECENT_RECEIVES]

    def _kind(self, received: Received) -> HandleKind:
        if received.queue not in self._model.queues():
            return "gone"
        for message in self._model.peek(received.queue):
            if message.delivery_id == received.delivery_id:
                is_invisible = message.visible_at > self._clock.now()
                if message.receive_count > received.receive_count:
                    return "superseded" if is_invisible else "superseded and expired"
                return "current" if is_invisible else "expired"
        return "gone"

    def _with_handles(self, step: Step) -> tuple[Step, dict[Handle, Received]] | None:
        """Return a step with the handles that it needs, in another queue if its own has none; None if there is none.

        Right entries of a batch request for which there is no handle are left out.
        """
        entries = step.parameters.get("Entries", [step.parameters])
        if not any(isinstance(entry.get("ReceiptHandle"), Handle) for entry in entries):
            return step, {}
        spoiled = next((entry for entry in entries if entry.get("Id") == step.at), entries[0])
        for queue in (step.queue, *ROLES):
            found = self._handles_of(queue, [spoiled, *(entry for entry in entries if entry is not spoiled)])
            if spoiled["ReceiptHandle"] not in found and spoiled["ReceiptHandle"].kind not in UNREAL:
                continue
            kept = [each for each in entries if each["ReceiptHandle"] in found or each["ReceiptHandle"].kind in UNREAL]
            parameters = {"Entries": kept} if "Entries" in step.parameters else step.parameters
            return replace(step, queue=queue, parameters=parameters), found
        return None

    def _handles_of(self, queue: str, entries: list[dict[str, Any]]) -> dict[Handle, Received]:
        found: dict[Handle, Received] = {}
        name = self._names.get(queue, queue)
        for entry in entries:
            handle = entry["ReceiptHandle"]
            if handle.kind == "of another queue" or queue not in ROLES:
                choice = [each for each in self._received if each.queue != name]
            else:
                choice = [each for each in self._received if each.queue == name and self._kind(each) == handle.kind]
            messages = {each.delivery_id for each in found.values()}
            choice = [each for each in choice if each.delivery_id not in messages]
            if choice and handle.kind not in UNREAL:
                found[handle] = choice[handle.pick % len(choice)]
        return found

    def _resolved(self, value: Any, who: str, handles: Mapping[Handle, Received]) -> Any:
        match value:
            case Handle(kind="invalid"):
                return "no handle"
            case Handle(kind="empty"):
                return ""
            case Handle():
                return handles[value].handles.get(who, f"none of {handles[value].delivery_id}")
            case Name():
                return self._names.get(value.role, value.role)
            case OfType():
                return {"FifoQueue": "true"} if is_fifo(self._names[value.role]) else {}
            case Redrive():
                arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self._names[value.role]}"
                return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": value.max_receive_count})
            case dict():
                return {key: self._resolved(each, who, handles) for key, each in value.items()}
            case list():
                return [self._resolved(each, who, handles) for each in value]
        return value

    def _url(self, queue: str) -> str:
        account = "210987654321" if queue == OF_ANOTHER_ACCOUNT else ACCOUNT
        name = self._names["orders"] if queue == OF_ANOTHER_ACCOUNT else self._names.get(queue, queue)
        return f"https://sqs.{REGION}.amazonaws.com/{account}/{name}"


def _differences(ours: Outcome, theirs: Outcome) -> list[tuple[tuple[str, str], Any, Any]]:
    """Return the parts that differ; if one is refused, or other messages were received, no smaller parts of that."""
    for decisive in (("", ""), ("", "Messages")):
        if ours.get(decisive) != theirs.get(decisive):
            return [(decisive, ours[decisive], theirs[decisive])]
    differing = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    differing.sort(key=lambda key: bool(key[1]))  # refusals first: they explain others
    entries = {entry for entry, subject in differing if not subject}
    return [(key, ours.get(key), theirs.get(key)) for key in differing if not key[1] or key[0] not in entries]


def _short(value: Any) -> str:
    return textwrap.shorten(str(value), 100)
