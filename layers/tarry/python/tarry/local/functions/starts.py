"""How soon a process is started again after one that did not get as far as its first invocation."""

import asyncio

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0


class Starts:
    """Lets a function's environments start, after a failed start only when a pause is over, which doubles each time.

    A handler that does not import would else be started as fast as its queue has messages. Made on the running loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pause = 0.0
        self._free = asyncio.Event()
        self._free.set()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until there may be another start."""
        await self._free.wait()

    def failed(self) -> None:
        """A start has failed. Those that were under way together count once."""
        if self._free.is_set():
            self._pause = min(MAX_PAUSE_SECONDS, self._pause * 2 or FIRST_PAUSE_SECONDS)
            self._free.clear()
            self._timer = self._loop.call_later(self._pause, self._free.set)

    def worked(self) -> None:
        """All is well, or may be: the code has changed."""
        self._pause = 0.0
        self._free.set()
        if self._timer is not None:
            self._timer.cancel()
