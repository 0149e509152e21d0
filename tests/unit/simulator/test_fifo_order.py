"""The order of a FIFO queue, checked with random scripts. moto cannot serve as a reference, since its rule differs."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulator.account import Account

QUEUE = "ledger.fifo"

steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abc")),
    st.tuples(st.just("receive"), st.integers(1, 10)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("change"), st.integers(0, 30), st.sampled_from((0, 1, 20, 50))),
    st.tuples(st.just("wait"), st.sampled_from((1, 10, 30))),
)


def receivable(account: Account) -> dict[str, list[str]]:
    """Return the messages that can be received, by group: those before the first invisible one."""
    groups: dict[str, list[Any]] = {}
    for message in account.sqs.peek(QUEUE):
        groups.setdefault(message.group or "", []).append(message)
    bodies: dict[str, list[str]] = {}
    for name, messages in groups.items():
        invisible = [message.visible_at > account.clock.now for message in messages]
        first_invisible = invisible.index(True) if True in invisible else len(invisible)
        bodies[name] = [message.body for message in messages[:first_invisible]]
    return bodies


@settings(max_examples=150)
@given(script=st.lists(steps, min_size=10, max_size=60))
def test_a_receive_returns_the_messages_of_each_group_before_the_first_invisible_one(
    script: list[tuple[str, int] | tuple[str, str] | tuple[str, int, int]],
) -> None:  # PLATFORM 14
    account = Account()
    account.queue(QUEUE)
    sent = 0
    leases: dict[str, tuple[str, float]] = {}
    for step in script:
        leased = [(body, handle) for body, (handle, until) in leases.items() if until > account.clock.now]
        match step:
            case "send", str(group):
                sent += 1
                account.send(QUEUE, f"{group}{sent}", group=group)
            case "receive", int(most):
                allowed = receivable(account)
                received = account.receive(QUEUE, most)
                assert len(received) == min(most, sum(map(len, allowed.values())))
                for message in received:
                    assert message["Body"] == allowed[message["Body"][0]].pop(0)
                    leases[message["Body"]] = message["ReceiptHandle"], account.clock.now + 30
            case "delete", int(index) if leased:
                body, handle = leased[index % len(leased)]
                account.delete(QUEUE, handle)
                del leases[body]
            case "change", int(index), seconds if leased:
                body, handle = leased[index % len(leased)]
                account.change_visibility(QUEUE, handle, seconds)
                leases[body] = handle, account.clock.now + seconds
            case "wait", int(seconds):
                account.wait(seconds)
