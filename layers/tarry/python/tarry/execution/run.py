"""One batch through the handler, message by message or all at once, sequentially."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.execution import driver
from tarry.execution.intake import Records, message_of, read_attributes
from tarry.message import ACK, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tarry.batch import Batch
    from tarry.decision import Decision
    from tarry.execution.verdicts import Again, Handling, Settling, Verdicts
    from tarry.invocation import Invocation


RESULT_IGNORED = (
    "the handler returned batchItemFailures, which nobody reads: its messages count as done; say message.retry() or "
    "message.fail(error) of those that failed, or raise"
)


class Run:
    """One run. ``pending`` loses what is done; ``verdicts`` takes down what is to become of the rest."""

    def __init__(self, handling: Handling, invocation: Invocation, pending: Records, settling: Settling) -> None:
        self._handling = handling
        self._invocation = invocation
        self._pending = pending
        self._settling = settling
        self._todo = iter(list(pending.items()))
        self._running: Message[Any] | Batch[Any] | None = None
        self._ending = False
        self._verdicts: Verdicts | None = None

    @property
    def verdicts(self) -> Verdicts:
        """What was decided of messages that are not simply done; a clean batch does not even load it."""
        if self._verdicts is None:
            from tarry.execution.verdicts import Verdicts

            self._verdicts = Verdicts(self._handling, self._pending, self._settling)
        return self._verdicts

    def close(self) -> list[Decision]:
        """What is left to be carried out; nothing for a clean batch."""
        return [] if self._verdicts is None else self._verdicts.close()

    def each(self) -> None:
        """Runs a handler of one message over the batch, in its order."""
        self._drive(self._each)

    def batch(self) -> None:
        """Runs a handler of the whole batch."""
        self._drive(self._batch)

    def _drive(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            if self._handling.is_async:
                driver.run_async(steps(), self._stop)
            else:
                driver.run_sync(steps())
        except BaseException as error:  # noqa: BLE001 a SystemExit in a task of the handler's ends the event loop
            self._end(error)

    def _stop(self) -> None:
        self._ending = True

    def _after_validation(self) -> Callable[[Message[Any]], Any]:
        """The handler, which meets only messages whose bodies fit the model, if there is one."""
        function = self._handling.function
        if self._invocation.payload_reader is None:
            return function

        def validated(message: Message[Any]) -> Any:
            _ = message.payload
            return function(message)

        return validated

    async def _each(self) -> None:  # noqa: C901 one loop with no call of ours in it: it runs for every message
        function, invocation, pending = self._after_validation(), self._invocation, self._pending
        is_fifo = _any_fifo(pending)
        for message_id, record in self._todo:
            message: Message[Any] = Message(record, message_id, invocation)
            if record.get("messageAttributes") and self._waits_by_its_record(message):
                continue
            if is_fifo and not self.verdicts.may_run(message):
                continue
            self._running = message
            raised: BaseException | None = None
            try:
                result = function(message)
                if result is not None:
                    await self._complete(result)
            except Exception as error:  # noqa: BLE001 whatever it is, it is this message's failure
                raised = error
            except BaseException as error:  # noqa: BLE001 it ends the batch, and never the function
                if not (self._ending or driver.is_cancelled_error(error)):
                    return self._end(error)
                raised = error
            if self._ending:
                return None  # the event loop was ended: what ended it is the error to tell of
            if raised is None and (message._word is None or message._word is ACK):
                del pending[message_id]
                continue
            self._running = None
            again = self.verdicts.on_message(message, message._word, raised)
            if again is not None and not await self._run_again(again):
                return None
        while self._verdicts is not None and (again := self._verdicts.next_again()) is not None:
            if not await self._run_again(again):
                return None
        return None

    async def _run_again(self, again: Again | None) -> bool:
        """Runs a message within this delivery until it is decided; False if that has ended the batch."""
        while again is not None:
            message, clock = again.failure.message, self._invocation.world.clock
            if again.delay:
                await (clock.asleep(again.delay) if self._handling.is_async else self._sleep(again.delay))
            self._running = message
            raised: BaseException | None = None
            try:
                result = self._after_validation()(message)
                if result is not None:
                    await self._complete(result)
            except BaseException as error:  # noqa: BLE001 sorted out below, as for a first run
                if not (self._ending or isinstance(error, Exception) or driver.is_cancelled_error(error)):
                    self._end(error)
                    return False
                raised = error
            if self._ending:
                return False
            self._running = None
            again = self.verdicts.on_message(message, message._word, raised, again.failure.tries + 1)
        return True

    async def _sleep(self, seconds: float) -> None:
        self._invocation.world.clock.sleep(seconds)

    async def _batch(self) -> None:
        from tarry.batch import Batch

        batch: Batch[Any] = Batch(self._invocation.context)
        self._fill(batch)
        if not batch._messages:
            return
        self._running = batch
        raised: BaseException | None = None
        try:
            result = self._handling.function(batch)
            if result is not None:
                await self._complete(result)
        except BaseException as error:  # noqa: BLE001 all were running: what nothing was said about has failed
            raised = error
        if self._ending:
            return
        self._running = None
        if raised is not None or not batch._is_clean:
            self.verdicts.on_batch(batch, raised)
        elif len(batch) == len(self._pending):
            self._pending.clear()
        else:  # others were settled before the handler ran, or are not due yet
            for message in batch:
                del self._pending[message.delivery_id]

    def _fill(self, batch: Batch[Any]) -> None:
        """Puts into the batch what its handler is to see."""
        is_fifo, is_validated = _any_fifo(self._pending), self._invocation.payload_reader is not None
        for message_id, record in self._todo:
            message = message_of(record, message_id, self._invocation, self._handling.log)
            if self._waits(message):
                continue
            message._batch = batch
            if is_fifo and not self.verdicts.may_run(message):
                continue
            if is_validated and not self._is_valid(message, batch):
                continue
            batch._messages.append(message)

    def _is_valid(self, message: Message[Any], batch: Batch[Any]) -> bool:
        """Whether a message may join its batch; one without a payload is settled before the handler runs."""
        self._running = message
        try:
            _ = message.payload
            return True
        except Exception as error:  # noqa: BLE001 the body's fault or a validator's: this message's failure
            raised: BaseException = error
        except BaseException as error:  # noqa: BLE001 it ends the batch before the handler saw any of it
            if not driver.is_cancelled_error(error):
                for earlier in batch:
                    self.verdicts.give_back(earlier)
                batch._messages.clear()
                self._end(error)
                return False
            raised = error
        finally:
            self._running = None
        self.verdicts.on_message(message, None, raised)
        return False

    def _waits_by_its_record(self, message: Message[Any]) -> bool:
        read_attributes(message, self._handling.log)
        return self._waits(message)

    def _waits(self, message: Message[Any]) -> bool:
        """Whether it is not due yet; if so, it does not run, and is hidden until it is."""
        if message._envelope is None or (seconds := message._seconds_until_due()) is None:
            return False
        self.verdicts.wait(message, seconds)
        return True

    async def _complete(self, result: Any) -> None:
        """A result means nothing, but what has not run yet must run."""
        if not driver.is_awaitable(result):
            driver.refuse_generator(result)
            if isinstance(result, dict) and result.get("batchItemFailures"):
                self._handling.log.once(self._invocation.world, "result_ignored", RESULT_IGNORED)
        elif self._handling.is_async:
            try:
                await result
            finally:
                await driver.absorb_cancellation(lambda: self._ending)
        else:
            driver.run_awaitable(result)

    def _end(self, error: BaseException) -> None:
        """A `SystemExit` and its like: what was running has failed, what was not started is given back."""
        running, self._running = self._running, None
        if running is None:
            text = "tarry itself failed; what was not started is given back"
            self._handling.log.problem("runtime_failed", text, error=error)
        elif not isinstance(running, Message):
            self.verdicts.on_batch(running, error)
        elif running.delivery_id in self._pending:
            self.verdicts.on_message(running, running._word, error)
        for message_id, record in self._todo:
            message = message_of(record, message_id, self._invocation, self._handling.log)
            if not self._waits(message):
                self.verdicts.release(message)


def _any_fifo(records: Records) -> bool:
    return any(str(record.get("eventSourceARN")).endswith(".fifo") for record in records.values())
