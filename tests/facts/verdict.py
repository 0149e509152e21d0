"""What a probe has shown in a world."""

from dataclasses import dataclass
from datetime import date
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError

from tests.facts.places import Place
from tests.facts.registry import Probe

Kind = Literal["holds", "differs", "not run", "absent"]
"""Absent: the world has nothing of the kind."""

OF_THE_CALLER = ("AccessDenied", "Throttl", "LimitExceeded", "ExpiredToken", "InvalidClientTokenId", "Signature")
"""Refusals that say nothing of the fact."""


@dataclass(frozen=True)
class Verdict:
    """``detail`` is what was seen instead, or why it was not run; ``on`` is when."""

    kind: Kind
    detail: str = ""
    on: date | None = None


def judge(probe: Probe, place: Place, today: date) -> Verdict:
    """Runs a probe. Raises what is neither an answer nor the lack of one: a bug of ours."""
    if not probe.needs <= place.has:
        return Verdict("absent")
    try:
        with place.open() as world:
            probe.run(world)
    except AssertionError as error:
        return Verdict("differs", str(error), today)
    except NotImplementedError:
        return Verdict("differs", "it has no such request", today)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if any(part in code for part in OF_THE_CALLER):
            return Verdict("not run", f"{error.operation_name}: {code}")
        return Verdict("differs", f"{error.operation_name} was refused: {code}", today)
    except BotoCoreError as error:
        return Verdict("not run", type(error).__name__)
    return Verdict("holds", on=today)
