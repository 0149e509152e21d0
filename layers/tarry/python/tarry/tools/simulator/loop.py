"""An asyncio event loop in virtual time: when the loop waits, the actor that runs it waits."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from tarry.tools.simulator.actors import Actors
from tarry.tools.simulator.process import Killed
from tarry.tools.simulator.virtual_event import VirtualEvent

RESOLUTION_SECONDS = 1e-6
"""The loop runs callbacks that are due within this time. Epoch seconds as floats are exact to a quarter of it."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without network, in which ``asyncio.sleep``, timeouts and task groups work.

    A function that is run in an executor runs as an actor of its own, whatever the executor.
    """

    def __init__(self, actors: Actors) -> None:
        super().__init__()
        self._actors = actors
        self._clock_resolution = RESOLUTION_SECONDS
        self._awake = VirtualEvent(actors)
        self._selector = self

    def time(self) -> float:
        """The time of the scheduler, in epoch seconds."""
        return self._actors.scheduler.now

    def select(self, timeout: float | None) -> tuple[()]:
        """Wait for ``timeout`` seconds, or until another actor wakes the loop; there are no file descriptors."""
        if timeout is None or timeout > 0:
            self._awake.wait(timeout)
        self._awake.clear()
        return ()

    def run_in_executor(  # type: ignore[override]  # typeshed has it generic in the arguments
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a function as an actor."""
        future = self.create_future()

        def complete(set_outcome: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                set_outcome(outcome)

        def work() -> None:
            try:
                end = partial(complete, future.set_result, func(*args))
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001 raised where the result is awaited
                end = partial(complete, future.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: the result is not awaited any more
                self.call_soon_threadsafe(end)

        self._actors.start(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception, unless the actor was killed: its pending tasks are then expected."""
        if not self._actors.unwinding:
            super().call_exception_handler(context)

    def _process_events(self, event_list: object) -> None:
        """Do nothing: `select` returns no events."""

    def _write_to_self(self) -> None:
        self._awake.set()


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: VirtualLoop, *args: object, **settings: object) -> NoReturn:
        raise NotImplementedError(
            f"{name} is not supported: there are no sockets, processes or signals in virtual time; replace it in the "
            "test"
        )

    return refuse


_UNSUPPORTED = """
    add_reader add_signal_handler add_writer connect_accepted_socket connect_read_pipe connect_write_pipe
    create_connection create_datagram_endpoint create_server create_unix_connection create_unix_server getaddrinfo
    getnameinfo sendfile sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendfile
    sock_sendto start_tls subprocess_exec subprocess_shell
"""
for _name in _UNSUPPORTED.split():
    setattr(VirtualLoop, _name, _refusal(_name))
