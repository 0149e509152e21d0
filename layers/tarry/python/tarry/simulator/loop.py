"""An asyncio event loop in virtual time: its waits are waits of the actor that runs it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from tarry.simulator.actors import Actors
from tarry.simulator.flag import Flag
from tarry.simulator.process import Killed

RESOLUTION_SECONDS = 1e-6
"""Times since the epoch are exact to a quarter of this; what is due within it is due."""


class VirtualLoop(asyncio.BaseEventLoop):
    """``asyncio.sleep``, timeouts and task groups work; functions given to threads run as actors; there is no network.

    Whatever executor a function is given to, it runs as an actor of its own.
    """

    def __init__(self, actors: Actors) -> None:
        super().__init__()
        self._actors = actors
        self._clock_resolution = RESOLUTION_SECONDS
        self._awake = Flag(actors)
        self._selector = self

    def time(self) -> float:
        """Virtual seconds."""
        return self._actors.timeline.now

    def select(self, timeout: float | None) -> tuple[()]:
        """What the loop waits on: nothing but time, and being woken by another actor."""
        if timeout is None or timeout > 0:
            self._awake.wait(timeout)
        self._awake.clear()
        return ()

    def run_in_executor(  # type: ignore[override]  # typeshed has it generic in the arguments
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a function in a thread, that is, as an actor."""
        future = self.create_future()

        def answer(give: Callable[[Any], None], result: Any) -> None:
            if not future.done():
                give(result)

        def work() -> None:
            try:
                end = partial(answer, future.set_result, func(*args))
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001 raised where the result is awaited
                end = partial(answer, future.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: nobody awaits it any more
                self.call_soon_threadsafe(end)

        self._actors.start(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks of a killed actor were not forgotten, they are dead."""
        if not self._actors.unwinding:
            super().call_exception_handler(context)

    def _process_events(self, event_list: object) -> None:
        """There are none but being woken."""

    def _write_to_self(self) -> None:
        self._awake.set()


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: VirtualLoop, *args: object, **settings: object) -> NoReturn:
        raise NotImplementedError(
            f"{name}: there are no sockets, processes or signals in virtual time; put a stand-in in their place"
        )

    return refuse


_REAL = """
    add_reader add_signal_handler add_writer connect_accepted_socket connect_read_pipe connect_write_pipe
    create_connection create_datagram_endpoint create_server create_unix_connection create_unix_server getaddrinfo
    getnameinfo sendfile sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendfile
    sock_sendto start_tls subprocess_exec subprocess_shell
"""
for _name in _REAL.split():
    setattr(VirtualLoop, _name, _refusal(_name))
