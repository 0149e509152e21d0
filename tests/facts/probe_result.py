"""Running a probe on a target, and its result."""

from dataclasses import dataclass
from datetime import date
from json import JSONDecodeError
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError

from tests.facts.registry import Probe
from tests.facts.targets import Target

Kind = Literal["holds", "differs", "not run", "absent"]
"""Absent: the platform lacks what the probe needs."""

OF_THE_CALLER = ("AccessDenied", "Throttl", "LimitExceeded", "ExpiredToken", "InvalidClientTokenId", "Signature")
"""Error codes that are about the caller, not the fact."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe: ``detail`` is the observed behaviour or why it was not run, ``on`` the date."""

    kind: Kind
    detail: str = ""
    on: date | None = None


def run_probe(probe: Probe, target: Target, today: date) -> ProbeResult:
    """Run a probe and return its result. Any other exception is a bug in the probe, and is raised."""
    if not probe.needs <= target.has:
        return ProbeResult("absent")
    try:
        with target.open() as platform:
            probe.run(platform)
    except AssertionError as error:
        return ProbeResult("differs", str(error), today)
    except NotImplementedError:
        return ProbeResult("differs", "it has no such request", today)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if any(part in code for part in OF_THE_CALLER):
            return ProbeResult("not run", f"{error.operation_name}: {code}")
        return ProbeResult("differs", f"{error.operation_name} was refused: {code}", today)
    except JSONDecodeError:  # raised by moto, which runs in this process
        return ProbeResult("differs", "it fails with a JSONDecodeError", today)
    except BotoCoreError as error:
        return ProbeResult("not run", type(error).__name__)
    return ProbeResult("holds", on=today)
