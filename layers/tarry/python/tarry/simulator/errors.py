"""What ends a simulation: errors of the one who simulates, never of a message."""


class SimulationError(Exception):
    """The simulation cannot go on; ``run`` raises it, however much the handler catches."""


class RealSleep(SimulationError):
    """A handler called `time.sleep`, which takes real time, where time is virtual."""


class Blocked(SimulationError):
    """Something did not hand over for seconds of real time: it really waits, or loops for ever."""


class ForeignThread(SimulationError):
    """A thread that the simulator did not start wanted to wait in virtual time."""


class WaitsForEver(SimulationError):
    """Something is waited for, and nothing is left to happen that could bring it about."""


class InvalidParameterValue(ValueError):
    """Lambda refuses a mapping: its ``InvalidParameterValueException``."""
