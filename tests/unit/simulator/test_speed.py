"""The cost of a request does not grow with the number of messages in the queue."""

from time import process_time

import pytest

from tests.unit.simulator.account import Account

WAITING, IN_FLIGHT = 8_000, 2_000
ROUNDS = 300
MAX_SECONDS_PER_ROUND = 0.003  # dozens of times the usual time, but less than a scan of all messages takes


@pytest.mark.parametrize("queue", ["orders", "ledger.fifo"])
def test_a_send_a_receive_and_a_delete_are_fast_with_10000_messages_in_the_queue(queue: str) -> None:
    account = Account()
    account.queue(queue)

    def send(number: int) -> None:
        account.send(queue, str(number), group=str(number % 2000))

    for number in range(WAITING + IN_FLIGHT):
        send(number)
    for _ in range(IN_FLIGHT // 10):
        account.receive(queue)
    began = process_time()
    for number in range(ROUNDS):
        send(WAITING + IN_FLIGHT + number)
        [message] = account.receive(queue, most=1)
        account.change_visibility(queue, message["ReceiptHandle"], 60)
        account.delete(queue, message["ReceiptHandle"])
        account.sqs.depth(queue)
    assert (process_time() - began) / ROUNDS < MAX_SECONDS_PER_ROUND
