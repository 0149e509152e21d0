"""Dead letters in the console, without requests: snapshots, groups, filters, previews, jobs, the audit."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import MultiDict

from tarry.errors import TarryError
from tarry.failed import DeadLetterMessage, DeadLetterQueue, NowhereToGo, Result, select
from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.console.dead_letters.jobs import MAX_JOBS, MAX_PROBLEMS, Busy, QueueJob, QueueJobs
from tarry.tools.console.dead_letters.pages.changes import changes, planned
from tarry.tools.console.dead_letters.pages.jobs import MAX_RUNS, publish, read_audit, runs_about
from tarry.tools.console.dead_letters.pages.listing import (
    MAX_IDS,
    Choice,
    choice_of,
    command,
    page_of,
    problem_of,
    suggestions,
)
from tarry.tools.console.dead_letters.runs import JobRun, _report, parsed
from tarry.tools.console.dead_letters.snapshots import Snapshot, Snapshots
from tarry.tools.console.json_layout import editable, restored
from tests.unit.failed.dead_letters import envelope_of, read_dead_letter, received
from tests.wire import arn

NOW = 1_795_000_000.0
PATIENCE_SECONDS = 60.0


def queue(name: str = "orders-dlq") -> DeadLetterQueue:
    return DeadLetterQueue({"QueueArn": arn(name), "ApproximateNumberOfMessages": "3"}, (queue_arn(arn("orders")),))


def dead_letter_of(number: int, body: Any = None, *, name: str = "orders-dlq", **failure: Any) -> DeadLetterMessage:
    text = json.dumps({"id": number} if body is None else body)
    failure = {"failed_at": f"2026-11-21T08:{number % 60:02}:00Z", "traceback": "Traceback: secret", **failure}
    message = received(text, envelope_of(text, f"id-{number}", **failure)) | {"MessageId": f"delivery-{number}"}
    return read_dead_letter(message, queue_arn(arn(name)), NOW)


def snapshot_of(
    *dead_letters: DeadLetterMessage, snapshots: Snapshots | None = None, name: str = "orders-dlq"
) -> Snapshot:
    snapshots = snapshots or Snapshots()
    snapshot = snapshots.begin(queue(name), NOW)
    for each in dead_letters:
        snapshot.add(each)
    snapshot.end(NOW, is_complete=True)
    snapshots.put(snapshot)
    return snapshot


def ids(dead_letters: list[DeadLetterMessage]) -> list[str]:
    return [each.id for each in dead_letters]


# snapshots


def test_a_snapshot_lists_groups_and_filters_what_the_scan_found_the_newest_first() -> None:
    found = snapshot_of(
        dead_letter_of(1), dead_letter_of(3, type="app.Timeout", fingerprint="t"), dead_letter_of(2, {"total": 900})
    )
    assert [(each.value, each.count, each.example) for each in found.groups("fingerprint")] == [
        ("9f2c61d0a4be", 2, "id-2"),
        ("t", 1, "id-3"),
    ]
    for selection, expected in (
        (select(everything=True), ["id-3", "id-2", "id-1"]),
        (select(where=["type = app.Timeout"]), ["id-3"]),
        (select(where=["body.total > 800", "attempts = 5"]), ["id-2"]),
        (select(["delivery-1", "id-2"]), ["id-2", "id-1"]),
    ):
        assert ids(found.matching(selection).dead_letters) == expected
    whole, part = found.whole("delivery-2"), found.part("delivery-2")
    assert whole == dead_letter_of(2, {"total": 900})._changed(record={**whole.record})  # type: ignore[union-attr]
    assert whole.failure.traceback == "Traceback: secret"  # type: ignore[union-attr]
    assert (part.body, part.failure.traceback) == ("", None)  # type: ignore[union-attr]


def test_dead_letters_that_have_left_the_queue_leave_the_snapshot_its_groups_and_its_lists() -> None:
    found = snapshot_of(dead_letter_of(1), dead_letter_of(2), dead_letter_of(3))
    assert len(found.matching(select(everything=True)).dead_letters) == found.groups("type")[0].count == 3
    size = found.size
    found.forget(["delivery-1", "delivery-3", "unknown"])
    assert 0 < found.size < size
    assert ids(found.matching(select(everything=True)).dead_letters) == ["id-2"]
    assert found.groups("type")[0].count == len(found) == 1
    assert found.whole("delivery-1") is None
    assert found.gone == {"delivery-1": "id-1", "delivery-3": "id-3"}


def test_dead_letters_that_come_after_the_scan_are_not_chosen() -> None:
    """Also if the clock of the function that dead-lettered them is ahead of this machine's."""
    found = snapshot_of(dead_letter_of(1), dead_letter_of(2, failed_at="2031-01-01T00:00:00.500Z"))
    chosen = Choice(everything=True).selection(found.until)
    assert len(found.matching(chosen).dead_letters) == 2
    assert not chosen.matches(dead_letter_of(3, failed_at="2031-01-01T00:00:00.600Z"))


def test_bodies_that_do_not_fit_into_memory_are_dropped_those_of_older_scans_first() -> None:
    size = 3 * 1024
    snapshots = Snapshots(most=size)
    older = snapshot_of(dead_letter_of(1, name="old-dlq"), snapshots=snapshots, name="old-dlq")
    assert snapshots.find("id-1")[1]
    many = [dead_letter_of(number, {"text": [number * each for each in range(150)]}) for number in range(2, 12)]
    newer = snapshot_of(*many, snapshots=snapshots)
    assert older.dropped == 1
    assert 0 < newer.dropped < len(many)
    assert (len(newer), newer.groups("type")[0].count) == (10, 10)
    for name in ("id-1", "delivery-1"):
        part, is_whole = snapshots.find(name)
        assert (part is not None, is_whole) == (True, False)
    matching = newer.matching(select(where=["body.text != null"]))
    assert (len(matching.dead_letters), matching.not_compared) == (10 - newer.dropped, newer.dropped)
    newest = snapshot_of(*many[:1], snapshots=snapshots)  # a new scan of the same queue frees the memory of the last
    assert (newest.dropped, snapshots.find("id-2")) == (0, (newest.whole("delivery-2"), True))


def test_what_left_the_queue_leaves_the_snapshot_while_its_job_still_runs() -> None:
    found, jobs = snapshot_of(*map(dead_letter_of, range(201))), jobs_here()
    audit = SimpleNamespace(add=lambda _: None)

    def results() -> Iterator[Result]:
        for number in range(200):
            yield Result(f"id-{number}", "deleted", dead_letter=dead_letter_of(number))
        sizes.append(len(found))

    sizes = list[int]()
    job = ended(
        jobs.start("remove", "q", "Remove", 1, lambda job: _report(JobRun(None, job, None, found), audit, results()))
    )
    assert (job.view().error, sizes) == ("", [1])


def test_a_list_is_cut_into_pages() -> None:
    page = page_of(range(10_000), 3)
    assert (list(page.rows), page.first, page.pages) == (list(range(200, 300)), 201, 100)
    assert page_of(range(10_000), 999).number == 100
    assert (page_of([], 5).number, page_of([], 5).first) == (1, 0)


# choices and filters


def test_a_choice_is_ids_or_conditions_or_all() -> None:
    typed = [("where", " type = a "), ("where", ""), ("where", "type = a"), ("where", "body.x = 1")]
    where = choice_of(MultiDict(typed))
    assert where == Choice(where=("type = a", "body.x = 1"))
    assert where.query == "where=type+%3D+a&where=body.x+%3D+1"
    assert where.words(1_200, "orders-dlq") == "1,200 dead letters of orders-dlq where type = a and body.x = 1"
    assert choice_of(MultiDict(id="d-1", where="type = a", all="1")) == Choice(ids=("d-1",))
    assert choice_of(MultiDict()).is_empty
    assert command("retry", "orders-dlq", where.options("2026-11-21T08:00:00Z")) == (
        "tarry failed retry --queue orders-dlq --where 'type = a' --where 'body.x = 1' --until 2026-11-21T08:00:00Z"
    )
    with pytest.raises(UsageError, match=r"^1,001 dead letters are selected one by one, and 1,000 is the most"):
        choice_of(MultiDict(("id", str(number)) for number in range(MAX_IDS + 1)))


def test_a_group_is_chosen_by_conditions_that_only_its_dead_letters_meet() -> None:
    messages = ["no", " no ", "7", "null", 'a "quoted" = one', "two\nlines"]
    found = snapshot_of(
        *(dead_letter_of(number, message=text) for number, text in enumerate(messages)), dead_letter_of(9, message=None)
    )
    for group in found.groups("error"):
        chosen = Choice(where=group.conditions).selection()
        assert len(found.matching(chosen).dead_letters) == group.count, group.conditions


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", ["type ", "reason ", "attempts ", "failed_at "]),
        ("fin", ["fingerprint "]),
        ("body.", ["body.id ", "body.customer ", "body.customer.name "]),
        ("type ", ["type = ", "type != ", "type ~ "]),
        ("type = ", ["type = app.Timeout", "type = app.CardDeclined"]),
        ("type != card", ["type != app.CardDeclined"]),
        ("body.customer.name = ", ["body.customer.name = Ada"]),
        ("body.id =", ["body.id = 1"]),
        ("origin = ", ["origin = orders"]),
        ("length(body", []),
    ],
)
def test_fields_operators_and_values_are_completed(typed: str, expected: list[str]) -> None:
    timeouts = [dead_letter_of(number, type="app.Timeout") for number in (2, 3)]
    found = snapshot_of(dead_letter_of(1, {"id": 1, "customer": {"name": "Ada"}}), *timeouts)
    texts = [each.text for each in suggestions(typed, found, shows_bodies=True)]
    assert texts[: len(expected)] == expected
    if "name" not in typed:
        return
    assert suggestions(typed, found, shows_bodies=False) == []  # a body must not show in what is completed


def test_a_condition_that_cannot_be_used_is_an_error_with_its_column() -> None:
    assert (problem_of("type = a", shows_bodies=False), problem_of("   ", shows_bodies=True)) == (None, None)
    error = "invalid condition 'typ = a' at column 1: unknown field 'typ'; the fields are type,"
    assert str(problem_of("typ = a", shows_bodies=True)).startswith(error)
    for text in ("body.secret ~ ^a", "attributes.token = x", "length(@) > 1", "extra != 1"):
        assert "this console shows no bodies (--no-bodies)" in str(problem_of(text, shows_bodies=False))


# previews


def test_a_preview_counts_what_goes_where_and_what_stays() -> None:
    of = {3: {"origin": "ledger"}, 4: {"reason": "undecodable"}, 5: {"origin": None}}
    asked = []

    def target(dead_letter: DeadLetterMessage) -> Any:
        asked.append(dead_letter.id)
        if dead_letter.origin is None:
            raise NowhereToGo("unknown")
        return queue_arn(dead_letter.origin)

    plan = planned([dead_letter_of(number, **of.get(number, {})) for number in range(1, 6)], target)
    assert plan.destinations == [("orders", 2), ("ledger", 1)]
    assert plan.hindered == [("the body cannot be decoded: edit it first", 1), ("unknown", 1)]
    assert (plan.sent, asked) == (3, ["id-1", "id-3", "id-5"])


def test_the_settings_of_a_retry_are_those_of_the_command() -> None:
    form = {"canary": "10", "within": "5m", "rate": "100/m", "max_return": "5%", "to": " spare "}
    settings = parsed(form, by_id=False)
    assert settings.options == "--canary 10 --within 5m --rate 100/m --max-return 5% --to spare".split()
    assert settings.fields() == {
        "via": "queue", "to": "spare", "canary": 10, "within": 300.0, "rate": pytest.approx(5 / 3), "max_return": 0.05,
    }  # fmt: skip
    assert (settings.concurrency, settings.in_doubt, parsed({}, by_id=False).in_doubt) == (1, 10, 40)


@pytest.mark.parametrize(
    ("form", "by_id", "error"),
    [
        ({"canary": "ten"}, False, "the number of canaries must be a whole number, such as 10, got 'ten'"),
        ({"canary": "0"}, False, "the number of canaries must be 1 or more, got 0"),
        ({"canary": "3"}, True, "canaries are the first of many, and these dead letters are selected one by one"),
        ({"within": "5m"}, False, "the time to watch canaries needs a number of canaries"),
        ({"canary": "3", "within": "soon"}, False, "the time to watch canaries must be a duration such as 90s"),
        ({"rate": "0"}, False, "--rate must be a number of messages above 0"),
        ({"max_return": "5"}, False, "--max-return must be a percentage from 0% to 100%"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(form: dict[str, str], by_id: bool, error: str) -> None:
    with pytest.raises((UsageError, TarryError), match=error.replace("(", r"\(")):
        parsed(form, by_id=by_id)


@pytest.mark.parametrize(
    ("before", "typed", "expected"),
    [
        ("{\n}", "{\r\n}", "{\n}"),
        ("{\n}", "{\r\n 1}", "{\n 1}"),
        ("a\r\nb", "a\r\nc", "a\r\nc"),
        ("a\r\nb\nc\rd", "a\r\nb\r\nc\r\nd", "a\r\nb\nc\rd"),  # was not edited
    ],
)
def test_the_line_ends_of_an_edited_body_stay(before: str, typed: str, expected: str) -> None:
    assert restored(before, typed) == expected


@pytest.mark.parametrize(
    "body",
    [
        '{"a": 1.50, "b": [1, {}], "a": "x, y: \\u00e9"}',
        '{"a":1.50,"b":[],"c":"{, :}"}',
        '{"a" : 1}',
        '{"a":\n1}\r\n',
        "text, with: {} in it",
        '"text"',
        "[" * 100_000 + "]" * 100_000,
        '{"a": "' + "x" * 300_000 + '"}',
    ],
)
def test_a_body_is_edited_with_one_value_a_line_and_sent_as_it_was_if_it_is_not_edited(body: str) -> None:
    assert restored(body, "\r\n".join(editable(body).splitlines()) + "\r\n" * body.endswith("\n")) == body


def test_an_edited_body_keeps_the_layout_that_it_had() -> None:
    before = '{"a":1.50,"b":[1,2]}'
    assert editable(before) == '{\n  "a": 1.50,\n  "b": [\n    1,\n    2\n  ]\n}'
    assert restored(before, editable(before).replace("2", "3")) == '{"a":1.50,"b":[1,3]}'
    assert restored('{"a": 1, "b": 2}', '{\r\n "a": 7\r\n}') == '{"a": 7}'
    assert restored(before, '{\r\n "a": 7,\r\n') == '{\n "a": 7,\n'  # not JSON: refused as it was typed


def test_the_changes_of_an_edited_body_are_shown_in_lines_or_of_one_line_in_parts() -> None:
    assert changes("{}", "{}") == (False, True, (), False)
    assert changes('{"a": 1}', '{ "a": 1}').is_same_value
    assert changes('{\n "a": 1,\n "b": 2\n}', '{\n "a": 1,\n "b": 3\n}').lines == (
        '  "a": 1,', '- "b": 2', '+ "b": 3', " }",
    )  # fmt: skip
    assert changes("x" * 100 + "1" + "y" * 100, "x" * 100 + "2" + "y" * 100).lines == (
        "-\u2026" + "x" * 40 + "1" + "y" * 40 + "\u2026",
        "+\u2026" + "x" * 40 + "2" + "y" * 40 + "\u2026",
    )
    assert changes('{"a": 12}', '{"a": 1}').lines == ('-{"a": 12}', '+{"a": 1}')
    assert changes("x" * 70_000, "y") == (True, False, (), True)
    lines = list(map(str, range(2_001)))
    assert changes("\n".join(lines[:-1]), "\n".join([*lines[:-2], "x"])).lines[-2:] == ("-1999", "+x")
    assert changes("\n".join(lines), "x") == (True, False, (), True)


# jobs


def jobs_here() -> QueueJobs:
    return QueueJobs(lambda work: work(), lambda error: str(error) if isinstance(error, TarryError) else None)


def ended(job: QueueJob) -> QueueJob:
    done = threading.Event()
    job.changed = lambda each: done.set() if not each.is_active else None
    if not job.is_active:
        done.set()
    assert done.wait(PATIENCE_SECONDS)
    return job


def scanned(jobs: QueueJobs, queue: str = "orders-dlq") -> Any:
    """Return the view of a scan that has ended."""
    return ended(jobs.start("scan", queue, "Scan", 1, lambda _: None)).view()


def test_one_job_runs_on_a_queue_at_a_time_and_a_stopped_one_says_so() -> None:
    jobs, begun, goes_on = jobs_here(), threading.Event(), threading.Event()

    def work(job: QueueJob) -> None:
        job.at(320, 1_200)
        begun.set()
        goes_on.wait(PATIENCE_SECONDS)
        assert job.should_stop()

    first = jobs.start("retry", "orders-dlq", "Retry", 1_200, work)
    begun.wait(PATIENCE_SECONDS)
    with pytest.raises(Busy, match=r"^A retry runs on orders-dlq \(0 of 1,200\). Wait for its end, or stop it"):
        scanned(jobs)
    assert (scanned(jobs, "other-dlq").state, first.view().state, first.view().state_text) == (
        "done", "running", "running",
    )  # fmt: skip
    first.stop()
    assert first.view().state_text == "stopping after the current dead letters"
    goes_on.set()
    assert ended(first).view().state == "stopped"
    first.stop()  # has no effect any more
    assert scanned(jobs).state == "done"
    assert [each.number for each in jobs.all()] == [3, 2, 1]


def test_a_job_that_fails_shows_the_error_and_what_it_had_done() -> None:
    def work(job: QueueJob) -> None:
        for number in range(MAX_PROBLEMS + 5):
            job.add(Result(f"id-{number}", "failed", "not sent"))
        job.add(Result("id", "retried"))
        raise TarryError("SQS throttles")

    view = ended(jobs_here().start("retry", "orders-dlq", "Retry", 1, work)).view()
    assert (view.state, view.error) == ("failed", "SQS throttles")
    assert dict(view.counts) == {"failed": 205, "retried": 1}
    assert (len(view.lines), view.more_lines, view.lines[-1].id) == (MAX_PROBLEMS, 5, "id-204")


def test_only_a_scan_that_has_ended_without_an_error_is_shown_on_the_lists() -> None:
    def fail(_: QueueJob) -> None:
        raise TarryError("SQS throttles")

    jobs, published = jobs_here(), list[str]()
    live = SimpleNamespace(publish=lambda name, _: published.append(name))
    for kind, work in (("retry", print), ("scan", fail), ("scan", str)):
        publish(SimpleNamespace(live=live, can_write=True), ended(jobs.start(kind, "q", "Job", 1, work)))  # type: ignore[arg-type]
    assert [each for each in published if each.endswith(("found", "listed"))] == ["job-3-found", "job-3-listed"]


def test_the_console_remembers_the_last_jobs() -> None:
    jobs = jobs_here()
    for _ in range(MAX_JOBS + 3):
        scanned(jobs)
    assert (len(jobs.all()) <= MAX_JOBS + 1, jobs.get(1)) == (True, None)


# the audit


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


RUN = {"v": 1, "at": "2026-11-21T08:00:00Z", "command": "tarry failed retry", "user": "ada@laptop"}


def test_the_audit_is_read_from_its_end_and_damaged_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert read_audit(path) == ((), False, 0)
    more = {"where": ["type = a", "b = c"], "outcomes": {"retried": 2}, "ids": ["1", "2"]}
    found = read_audit(written(path, RUN | more, "{not json", "[]", RUN | {"more_ids": 7, "all": True}))
    assert (found.damaged, found.is_cut) == (2, False)
    last, first = found.runs
    assert (first.who, first.outcomes, first.details, first.what) == (
        "ada@laptop",
        (("retried", 2),),
        (("where", "type = a; b = c"),),
        "Retried 2 dead letters where type = a and b = c",
    )
    assert (last.more_ids, last.details) == (7, (("all", "true"),))
    assert [each.at for each in runs_about(path, ["3", "2"])] == [first.at]
    assert runs_about(path, ["3"]) == []
    assert not read_audit(written(path, *[RUN] * MAX_RUNS)).is_cut
    assert read_audit(written(path, *[RUN] * (MAX_RUNS + 1))).is_cut
    path.write_text(json.dumps(RUN).ljust(4 * 1024 * 1024))
    assert (len(read_audit(path).runs), read_audit(path).is_cut) == (1, False)
    path.write_text(path.read_text() + " ")
    assert (len(read_audit(path).runs), read_audit(path).is_cut) == (0, True)


def test_a_run_that_did_not_end_is_shown_and_one_that_did_is_shown_once(tmp_path: Path) -> None:  # SPEC M6
    begun = {**RUN, "run": "a1", "all": True}
    ended = {**begun, "ended_at": "2026-11-21T08:01:00Z", "outcomes": {"retried": 2}}
    path = written(tmp_path / "audit.jsonl", begun, {**begun, "run": "b2"}, ended)
    assert [run.what for run in read_audit(path).runs] == [
        "Retried 2 dead letters: all that were found",
        "tarry failed retry began and did not end: it was killed, or still runs",
    ]


@pytest.mark.parametrize(
    ("command", "line", "expected"),
    [
        ("failed remove", {"outcomes": {"deleted": 1}, "asked_ids": ["x"]}, "Removed 1 dead letter, chosen by id"),
        ("failed restore", {"outcomes": {"restored": 12}}, "Restored 12 dead letters"),
        ("failed retry", {"outcomes": {"retried": 1, "edited": 1}}, "Retried 1 dead letter with an edited body"),
        (
            "failed retry",
            {"outcomes": {"retried": 2}, "all": True, "came_back": "2 of 2 canaries came back"},
            "Retried 2 dead letters: all that were found; ended because messages came back",
        ),
        (
            "failed remove",
            {"outcomes": {"deleted": 2}, "stopped": True},
            "Removed 2 dead letters; stopped before the end",
        ),
        ("pause", {"changes": [{"queue": "orders", "function": "shop-orders"}]}, "Paused orders \u2192 shop-orders"),
        ("failed retry", {"outcomes": "x", "where": 7, "changes": 1}, "Retried 0 dead letters"),
        ("of another version", {}, "tarry of another version"),
    ],
)
def test_the_audit_says_in_words_what_was_done(
    command: str, line: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "audit.jsonl", {**RUN, "command": f"tarry {command}", **line})
    [run] = read_audit(path).runs
    assert run.what == expected
