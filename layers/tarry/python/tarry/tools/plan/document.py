"""A timeline and a load as a JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tarry.tools.plan.load import costs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.tools.plan.load import LoadResult, LoadRun, Spread
    from tarry.tools.plan.request import PlanSubject
    from tarry.tools.plan.timeline import PlannedAttempt, PolicyTimeline


def document(subject: PlanSubject, result: LoadResult | None) -> dict[str, Any]:
    """Return all numbers; times are seconds."""
    found = _timeline(subject.timeline, subject.warnings(result))
    if subject.today is not None:
        found["today"] = _timeline(subject.today, subject.today.warnings)
    if result is not None:
        found["load"] = _load(result)
    return found


def _timeline(timeline: PolicyTimeline, warnings: Sequence[str]) -> dict[str, Any]:
    policy = timeline.policy
    return {
        "consumer": policy.name,
        "queue": asdict(timeline.queue),
        "max_attempts": policy.max_attempts if policy.retries_in_place else None,
        "backoff": policy.backoff if policy.retries_in_place else None,
        "steps": [step.name for step in policy.steps],
        "attempts": [_attempt(each) for each in timeline.attempts],
        "end": {"how": timeline.last.follows, "queue": timeline.last.target or None, **_bounds(timeline.ends)},
        "warnings": list(warnings),
    }


def _attempt(attempt: PlannedAttempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "receive_count": attempt.receive_count,
        **_bounds(attempt.begins),
        "runs": attempt.runs,
        "then": attempt.follows,
        "step": attempt.step or None,
        "delay": _bounds(attempt.wait),
        "queue": attempt.target or None,
        "notes": list(attempt.notes),
    }


def _bounds(bounds: tuple[float, float]) -> dict[str, float]:
    return {"earliest": bounds[0], "latest": bounds[1]}


def _load(result: LoadResult) -> dict[str, Any]:
    numbers = (
        "failed",
        "waiting_at_end",
        "peak_waiting",
        "peak_ready",
        "peak_in_flight",
        "messages",
        "runs",
        "invocations",
    )
    costs = costs_of(result)
    return {
        **asdict(result.load),
        "seeds": [run.seed for run in result.runs],
        "messages_per_simulated_message": result.runs[0].scale,
        **{name: _spread(result.of(lambda run, name=name: _number(run, name))) for name in numbers},  # type: ignore[misc]
        "drained_at": None if result.drained is None else _spread(result.drained),
        "dead_letters": _spread(result.of(lambda run: run.dead)),
        "requests": _spread(costs.requests),
        "dollars": {
            "requests": costs.request_dollars,
            "invocations": costs.invocation_dollars,
            "compute": costs.compute_dollars,
        },
    }


def _number(run: LoadRun, name: str) -> float:
    number: float = getattr(run, name)
    return number


def _spread(found: Spread) -> dict[str, float]:
    return {"mean": found.mean, "lowest": found.least, "highest": found.most}
