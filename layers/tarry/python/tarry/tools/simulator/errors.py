"""Errors that end a simulation, and Lambda's refusal of an event source mapping."""


class SimulationError(Exception):
    """The simulation cannot continue. `Scheduler.run` raises it, even if the handler catches every exception."""


class RealSleep(SimulationError):
    """A handler called `time.sleep`, which takes real time, although time is virtual."""


class Blocked(SimulationError):
    """An actor blocked in a real wait or an endless loop for seconds of real time."""


class ForeignThread(SimulationError):
    """A thread that the simulator did not start called a function of virtual time."""


class WaitsForEver(SimulationError):
    """The code waits for an event, but nothing is scheduled that could set it."""


class InvalidParameterValue(ValueError):
    """Lambda refuses an event source mapping with ``InvalidParameterValueException``."""
