"""The queue that each record of an event is sent to."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tarry.failed.usage import UsageError
from tarry.tools.local.samples import Sample
from tarry.tools.template import Template

GROUP = "sample"
"""The message group of a record that has none, if its queue was chosen here."""


def routed(
    samples: Sequence[Sample], template: Template, queue: str | None, event: str, note: Callable[[str], None]
) -> list[Sample]:
    """Return the records with the queue that each is sent to.

    A record stays with the queue it names, by name or by logical id, if a function consumes it. All other records go to
    the given queue, or to the only consumed one.

    Args:
        samples: The records.
        template: The template.
        queue: The queue for the other records, by name or logical id.
        event: The name of the event, for errors.
        note: Called with a line for each queue that is replaced.

    Raises:
        UsageError: no function consumes the given queue, or it is not clear which queue is meant.
    """
    consumed = dict.fromkeys(mapping.queue for mapping in template.mappings)
    names = {each.logical_id: each.name for each in template.queues.values() if each.name in consumed}
    chosen = names.get(queue, queue) if queue is not None else next(iter(consumed)) if len(consumed) == 1 else None
    if queue is not None and chosen not in consumed:
        raise UsageError(f"no function in {template.path} consumes {queue} (--queue); {_choices(consumed)}")
    found: list[Sample] = []
    moved: dict[str, list[int]] = {}
    for sample in samples:
        own = names.get(sample.queue, sample.queue)
        if own in consumed:
            found.append(replace(sample, queue=own))
            continue
        if chosen is None:
            why = f"is for queue {sample.queue}, which no function in {template.path} consumes"
            raise UsageError(
                f"{event}: record {sample.number} {why if sample.queue else 'names no queue'}: name the queue to send "
                f"it to (--queue NAME); {_choices(consumed)}"
            )
        moved.setdefault(sample.queue, []).append(sample.number)
        group = sample.group_id or (GROUP if chosen.endswith(".fifo") else None)
        found.append(replace(sample, queue=chosen, group_id=group))
    for name, numbers in moved.items():
        which = f"record {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} records"
        note(
            f"Sending {which} to {chosen}: " + (f"no function here consumes {name}." if name else "no queue is named.")
        )
    return found


def _choices(consumed: Iterable[str]) -> str:
    return f"queues with a function: {', '.join(sorted(consumed)) or 'none'}"
