"""From the arguments of `tarry plan` to timelines: the template, the consumer's code, or a backoff alone."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tarry.decide.retry_policy import DEFAULT_MAX_ATTEMPTS, Backoff, Exponential, Fixed, Linear, RetryPolicy, Schedule
from tarry.decide.steps import StepList
from tarry.errors import ConfigurationError
from tarry.failed.text import duration, shortened
from tarry.failed.usage import UsageError
from tarry.support.values import MAX_VISIBILITY_SECONDS
from tarry.tools.local.functions.code import Overrides
from tarry.tools.plan.policy import PlannedPolicy, WantedPolicies, load_policies, policy_of
from tarry.tools.plan.simulation import MOST_MESSAGES, Consuming, Load, LoadResult, longest_recovery, scale_of
from tarry.tools.plan.timeline import PolicyTimeline, timeline_of, without_tarry
from tarry.tools.plan.units import duration_of, rate_of, share_of, time_text
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT
from tarry.tools.template import Template, TemplateFunction, TemplateMapping
from tarry.tools.template.model import TemplateQueue, with_foreign_queues

Note = Callable[[str], None]

MAKERS: dict[str, Callable[..., Backoff]] = {
    "Fixed": Fixed,
    "Linear": Linear,
    "Exponential": Exponential,
    "Schedule": Schedule,
    "Schedule.rocketmq": Schedule.rocketmq,
}
MOST_CHARACTERS = 10_000
EXAMPLE = 'Exponential(30, 3, 900, jitter="equal")'


def backoff_from(text: str) -> Backoff:
    """Return the backoff that an expression describes. No code runs but the constructor.

    Raises `UsageError` if the text is not a call of a backoff of tarry, or its arguments are not accepted.
    """
    if len(text) > MOST_CHARACTERS:
        raise _refused(text, f"it is longer than {MOST_CHARACTERS:,} characters")
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(text, "it is not an expression of Python") from None
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    if not isinstance(call, ast.Call) or name not in MAKERS:
        raise _refused(text, f"it must be one of {', '.join(MAKERS)} with its arguments")
    try:
        positional = [ast.literal_eval(each) for each in call.args]
        named: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ValueError("**")
            named[keyword.arg] = ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise _refused(text, "its arguments must be numbers, strings or lists, written out") from None
    try:
        return MAKERS[name](*positional, **named)
    except ConfigurationError as error:
        raise _refused(text, str(error)) from None
    except TypeError as error:
        raise _refused(text, str(error).replace("__init__()", name).replace(f"{name}.{name}", name)) from None


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--backoff {shortened(text, 100)}: {why}. An example: --backoff '{EXAMPLE}'")


def load_warnings(result: LoadResult, timeline: PolicyTimeline, timeout: float | None) -> Iterator[str]:
    """Yield a sentence for each limit that a load passes."""
    load, consuming = result.load, result.consuming
    capacity = consuming.messages_per_second(load.handler_time)
    if load.rate >= capacity:
        yield (
            f"The function runs at most {capacity:,.4g} messages/s, fewer than arrive: the queue grows without end, "
            "also without an outage. Raise its concurrency, or make the handler faster."
        )
    batch_time = consuming.batch_size * load.handler_time / consuming.per_invocation
    if timeout is not None and batch_time > timeout:
        yield (
            f"A batch of {consuming.batch_size} takes {duration(batch_time)}, longer than the function's timeout of "
            f"{duration(timeout)}. tarry then releases messages that have not started, which is not simulated here."
        )
    in_flight = result.of(lambda run: run.peak_in_flight).highest
    if in_flight >= IN_FLIGHT_LIMIT:
        yield (
            f"{in_flight:,.0f} messages are in flight at once, and a standard queue has {IN_FLIGHT_LIMIT:,} places. "
            "When all are taken, SQS delivers no message of the queue, which is not simulated here. Use shorter or "
            "fewer delays, or SendAgain with delays of up to 15 minutes, which take no place."
        )
    if load.outage > MAX_VISIBILITY_SECONDS:
        yield (
            "The outage is longer than 12 hours, the longest that SQS keeps a message invisible: a message needs more "
            "than one attempt to outlast it."
        )
    if timeline.ends.latest < load.outage and timeline.last.follows == "dead_letter":
        yield (
            f"The attempts end after at most {time_text(timeline.ends.latest)}, before the outage does "
            f"({duration(load.outage)}). More attempts, or longer delays, would outlast it."
        )
    if (drained := result.drained) is not None and drained.highest > timeline.queue.retention_seconds:
        yield (
            f"The queue is drained only after {duration(drained.highest)}, and its retention is "
            f"{duration(timeline.queue.retention_seconds)}: SQS may delete messages before."
        )


@dataclass(frozen=True)
class PlanSubject:
    """A timeline, and how its queue feeds its function. ``timeout`` is the function's, if it is known."""

    timeline: PolicyTimeline
    consuming: Consuming = field(default_factory=Consuming)
    timeout: float | None = None
    today: PolicyTimeline | None = None
    """The timeline of a function without tarry; ``timeline`` is then that of tarry's defaults."""

    def warnings(self, result: LoadResult | None) -> list[str]:
        """Return the warnings about the timeline, and about a load."""
        of_load = [] if result is None else load_warnings(result, self.timeline, self.timeout)
        return [*self.timeline.warnings, *of_load]


def load_of(rate: str | None, failing: str, outage: str | None, handler_time: str) -> Load | None:
    """Return the load of the options; None without one. Raises `UsageError`."""
    if rate is None and outage is None:
        return None
    if rate is None or outage is None:
        missing = "--rate 50/s" if rate is None else "--outage 15m"
        raise UsageError(f"--rate and --outage belong together: add {missing}")
    return Load(
        rate_of("--rate", rate),
        share_of("--failing", failing),
        duration_of("--outage", outage, "15m"),
        duration_of("--handler-time", handler_time, "200ms"),
    )


def check_load(load: Load | None, subjects: Sequence[PlanSubject], *, has_svg: bool) -> None:
    """Raise `UsageError` for a load that cannot be simulated, and for one picture of several queues."""
    if len(subjects) > 1 and (has_svg or load is not None):
        names = ", ".join(each.timeline.queue.name for each in subjects)
        option = "--svg" if has_svg else "--rate"
        raise UsageError(f"{option} takes one queue, and the function has several: add --queue with one of {names}")
    if load is None:
        return
    for subject in subjects:
        queue, retention = subject.timeline.queue, subject.timeline.queue.retention_seconds
        if queue.is_fifo:
            raise UsageError(
                f"--rate cannot be simulated on the FIFO queue {queue.name}: how many messages wait depends on their "
                "groups. Leave out --rate to see the timeline."
            )
        if load.outage >= retention:
            raise UsageError(
                f"--outage of {duration(load.outage)} is not shorter than the retention of {queue.name}, "
                f"{duration(retention)}: SQS deletes messages before it is over"
            )
        expected = load.rate * longest_recovery(load, subject.timeline)
        if expected / scale_of(load, subject.timeline, subject.consuming) > MOST_MESSAGES:
            raise UsageError(
                f"the load is about {expected:,.0f} messages until the last retry of the outage, too many to simulate: "
                "give a lower --rate, or a shorter --outage"
            )


def subjects_of(  # noqa: PLR0913
    function: str | None,
    backoff: str | None,
    max_attempts: int | None,
    queue: str | None,
    *,
    template: Path | None,
    parameters: Mapping[str, str],
    config_env: str | None,
    env: Sequence[str],
    note: Note,
) -> list[PlanSubject]:
    """Return a subject for each queue of the function, or one for the backoff.

    Raises `UsageError` if the arguments contradict each other, or the function or its code cannot be used,
    `TemplateError` if the template cannot be read.
    """
    if backoff is not None:
        if function is not None or queue is not None:
            raise UsageError(f"--backoff takes no {'FUNCTION' if function else '--queue'}: leave one of them out")
        return [_of_backoff(backoff, max_attempts)]
    if max_attempts is not None:
        raise UsageError(f"--max-attempts needs --backoff, such as --backoff '{EXAMPLE}'")
    from tarry.tools.local.functions.code import read_overrides
    from tarry.tools.local.project import read_project, template_path
    from tarry.tools.template.finding import refuse_template

    if function is not None:
        refuse_template(function)
    overrides = read_overrides(env)
    if function is not None and "." in function and template is None:
        return [_of_module(function, queue)]

    def note_values(text: str) -> None:  # what `tarry local` leaves out does not matter for a plan
        if not text.startswith(("Not emulated", "Left out")):
            note(text)

    found = read_project(template_path(template, note), parameters, None, config_env, note_values)
    return subjects_in(found, function, queue, overrides, note)


def subjects_in(
    template: Template, name: str | None, queue: str | None, overrides: Overrides, note: Note
) -> list[PlanSubject]:
    """Return a subject for each queue of a function of a template, or for one queue of it.

    Without a name, it is the only function with a queue. Raises `UsageError` if the function or its code cannot be
    used, `TemplateError` if a value of the template cannot be resolved.
    """
    function, queues = _function_in(template, name), with_foreign_queues(template)
    own = [each for each in template.mappings if each.function == function.name]
    mappings = [each for each in own if queue is None or queue in (each.queue, queues[each.queue].logical_id)]
    if not mappings:
        known = ", ".join(each.queue for each in own)
        raise UsageError(f"{function.logical_id} has no queue {queue}; its queues are {known}")
    wanted = {each.queue: queues[each.queue].is_fifo for each in mappings}
    planned = _policies_in(template, function, wanted, overrides, note)
    return [_subject(each, queues[each.queue], function, planned[each.queue]) for each in mappings]


def _subject(
    mapping: TemplateMapping, facts: TemplateQueue, function: TemplateFunction, policy: PlannedPolicy
) -> PlanSubject:
    policy, today = replace(policy, name=function.logical_id), None
    if not policy.is_consumer:
        today = without_tarry(f"{policy.name} without tarry", facts)
        policy = replace(policy, name=f"{policy.name} with tarry's defaults", is_consumer=True)
    may_loop = function.recursive_loop == "Allow"
    timeline = timeline_of(policy, facts, timeout=function.timeout_seconds, may_loop=may_loop)
    limits = mapping.maximum_concurrency, function.reserved_concurrency
    consuming = Consuming(
        batch_size=mapping.batch_size,
        window=mapping.window_seconds,
        maximum_concurrency=min((each for each in limits if each is not None), default=None),
        memory_mb=function.memory_mb,
        per_invocation=policy.concurrency,
    )
    return PlanSubject(timeline, consuming, function.timeout_seconds, today)


def _function_in(template: Template, name: str | None) -> TemplateFunction:
    functions = template.functions
    fed = dict.fromkeys(each.function for each in template.mappings if each.function in functions)
    known = ", ".join(functions[each].logical_id for each in fed)
    if not fed:
        if why := template.unresolved_queues:
            raise UsageError(f"{template.path}: {why}")
        raise UsageError(f"no function of {template.path} has an SQS event: give a backoff (--backoff)")
    if name is None:
        if len(fed) == 1:
            return functions[next(iter(fed))]
        raise UsageError(f"name a function of {template.path} with a queue: {known}; or give a backoff (--backoff)")
    function = next((each for each in functions.values() if name in (each.name, each.logical_id)), None)
    if function is None:
        raise UsageError(f"{template.path} has no function {name}; functions with a queue are {known}")
    if function.name not in fed:
        raise UsageError(f"{function.logical_id} has no SQS event; functions with one are {known}")
    return function


def _policies_in(
    template: Template, function: TemplateFunction, queues: Mapping[str, bool], overrides: Overrides, note: Note
) -> dict[str, PlannedPolicy]:
    from tarry.tools.local.functions.code import variables_at
    from tarry.tools.local.project import with_placeholders

    made_up: list[str] = []
    template = with_placeholders(template, [function.name], overrides, made_up.append)
    function = template.functions[function.name]
    given = variables_at(function, template, overrides, None)
    try:
        return load_policies(WantedPolicies(function.logical_id, queues, function, given))
    except UsageError:
        for text in made_up:
            note(text)
        raise


def _of_backoff(text: str, max_attempts: int | None) -> PlanSubject:
    backoff = backoff_from(text)
    try:
        policy = RetryPolicy(max_attempts or DEFAULT_MAX_ATTEMPTS, backoff)
    except ConfigurationError as error:
        raise UsageError(str(error)) from None
    planned = policy_of("A consumer", policy, StepList(None), fifo=False)
    return PlanSubject(timeline_of(planned, TemplateQueue("its queue", "")))


def _of_module(name: str, queue: str | None) -> PlanSubject:
    queue = queue or "default"
    planned = load_policies(WantedPolicies(name, {queue: queue.endswith(".fifo")}))[queue]
    planned = replace(planned, name=name)
    return PlanSubject(
        timeline_of(planned, TemplateQueue(queue, "")),
        Consuming(per_invocation=planned.concurrency),
    )
