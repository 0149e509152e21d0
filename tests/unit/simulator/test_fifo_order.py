"""The rule of FIFO, held against random scripts: moto cannot, since it knows another one."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulator.account import Account

QUEUE = "ledger.fifo"

steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abc")),
    st.tuples(st.just("receive"), st.integers(1, 10)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("hide"), st.integers(0, 30), st.sampled_from((0, 1, 20, 50))),
    st.tuples(st.just("wait"), st.sampled_from((1, 10, 30))),
)


def may_come(account: Account) -> dict[str, list[str]]:
    """By group, what can be received: the messages before the first that is hidden."""
    groups: dict[str, list[Any]] = {}
    for message in account.sqs.peek(QUEUE):
        groups.setdefault(message.group or "", []).append(message)
    come: dict[str, list[str]] = {}
    for name, messages in groups.items():
        hidden = [message.visible_at > account.clock.now for message in messages]
        first_hidden = hidden.index(True) if True in hidden else len(hidden)
        come[name] = [message.body for message in messages[:first_hidden]]
    return come


@settings(max_examples=150, deadline=None)
@given(script=st.lists(steps, min_size=10, max_size=60))
def test_what_comes_is_the_beginning_of_each_group_up_to_what_is_hidden(
    script: list[tuple[str, int] | tuple[str, str] | tuple[str, int, int]],
) -> None:  # PLATFORM 14
    account = Account()
    account.queue(QUEUE)
    sent = 0
    leases: dict[str, tuple[str, float]] = {}
    for step in script:
        held = [(body, handle) for body, (handle, until) in leases.items() if until > account.clock.now]
        match step:
            case "send", str(group):
                sent += 1
                account.send(QUEUE, f"{group}{sent}", group=group)
            case "receive", int(most):
                allowed = may_come(account)
                received = account.receive(QUEUE, most)
                assert len(received) == min(most, sum(map(len, allowed.values())))
                for message in received:
                    assert message["Body"] == allowed[message["Body"][0]].pop(0)
                    leases[message["Body"]] = message["ReceiptHandle"], account.clock.now + 30
            case "delete", int(index) if held:
                body, handle = held[index % len(held)]
                account.delete(QUEUE, handle)
                del leases[body]
            case "hide", int(index), seconds if held:
                body, handle = held[index % len(held)]
                account.hide(QUEUE, handle, seconds)
                leases[body] = handle, account.clock.now + seconds
            case "wait", int(seconds):
                account.wait(seconds)
