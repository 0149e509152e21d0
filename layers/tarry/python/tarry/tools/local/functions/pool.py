"""The environments of a function: which of them are busy, idle, or to be ended."""

from tarry.tools.local.functions.environment import ProcessEnvironment
from tarry.tools.simulator.functions import WARM_SECONDS


class EnvironmentPool:
    """The existing environments of a function. The caller starts and ends them.

    The last used environment is used first, so that those which are not needed grow old.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[float, ProcessEnvironment]] = []
        """With the time of the last use, the oldest first."""
        self._busy: set[ProcessEnvironment] = set()
        self._retired: set[ProcessEnvironment] = set()
        """The busy ones that end after their invocation."""

    @property
    def all(self) -> list[ProcessEnvironment]:
        """The existing environments, busy or idle."""
        return [*self._busy, *(environment for _, environment in self._idle)]

    @property
    def busy(self) -> int:
        """The number of busy environments."""
        return len(self._busy)

    def take(self, *, is_loaded: bool) -> ProcessEnvironment | None:
        """Return the last used idle environment, which is busy from now on; ``is_loaded``: only if it has a process."""
        for place in reversed(range(len(self._idle))):
            if not (is_loaded and self._idle[place][1].is_cold):
                environment = self._idle.pop(place)[1]
                self._busy.add(environment)
                return environment
        return None

    def add_busy(self, environment: ProcessEnvironment) -> None:
        """Add an environment that is about to run an invocation."""
        self._busy.add(environment)

    def add_idle(self, environment: ProcessEnvironment, now: float) -> None:
        """Add an environment that waits for an invocation, new or after one."""
        self._busy.discard(environment)
        self._idle.append((now, environment))

    def remove(self, environment: ProcessEnvironment) -> None:
        """Remove an environment that is busy."""
        self._busy.discard(environment)
        self._retired.discard(environment)

    def is_retired(self, environment: ProcessEnvironment) -> bool:
        """Return whether a busy environment is to be ended after its invocation."""
        return environment in self._retired

    def retire(self) -> list[ProcessEnvironment]:
        """Remove and return the idle environments; the busy ones are retired."""
        self._retired |= self._busy
        idle, self._idle = self._idle, []
        return [environment for _, environment in idle]

    def expired(self, now: float) -> list[ProcessEnvironment]:
        """Remove and return the environments that have been idle for long."""
        found = []
        while self._idle and self._idle[0][0] <= now - WARM_SECONDS + 1:
            found.append(self._idle.pop(0)[1])
        return found

    def clear(self) -> list[ProcessEnvironment]:
        """Remove and return all environments."""
        found = self.all
        self._busy.clear()
        self._idle.clear()
        return found
