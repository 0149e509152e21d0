"""The pytest plugin: the fixture ``sandbox``, its seed, the report of a failing test, and no requests to AWS.

pytest loads this module in every run wherever tarry is installed, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tarry.world import current, use

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tarry.tools.testing.faults import Parts
    from tarry.tools.testing.report import RuleBroken
    from tarry.tools.testing.sandbox import Sandbox

MARKERS = (
    "sandbox(seed=0, realism=None, start=...): the settings of the fixture `sandbox`, those of tarry.testing.Sandbox",
    "tarry_aws: tarry's own SQS client sends requests to AWS in this test",
)
OPTION = "--tarry-seed"
SEEDS = "--tarry-seeds"
SEED_OF_ID = re.compile(r"(?:(\[)|-)seed(-?\d+)\]$")
"""The seed at the end of a test's id, which `--tarry-seeds` adds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tarry")
    group.addoption(OPTION, type=int, metavar="N", help="the seed of every sandbox, before that of its test's marker")
    text = "run each test that uses the fixture sandbox with N seeds in a row, from its own seed or --tarry-seed"
    group.addoption(SEEDS, type=int, metavar="N", help=text)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses the sandbox once for each seed."""
    count = metafunc.config.getoption(SEEDS)
    if count is None or "sandbox" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("sandbox")
    first = metafunc.config.getoption(OPTION)
    if first is None:
        first = marker.kwargs.get("seed", 0) if marker is not None else 0
    seeds = range(first, first + count)
    metafunc.parametrize("sandbox", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


def pytest_configure(config: pytest.Config) -> None:
    if (count := config.getoption(SEEDS)) is not None and count < 1:
        raise pytest.UsageError(f"{SEEDS} is a number of seeds from 1, got {count}")
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    world = current()
    before, config.stash[CLIENT] = world.client_factory, ClientOfRun()
    if before is None or isinstance(before, ClientOfRun):  # not one of the user's
        world.client_factory = config.stash[CLIENT]
        config.add_cleanup(lambda: setattr(world, "client_factory", before))


class ClientOfRun:
    """The client factory of a run. It loads boto3 at the first request."""

    def __init__(self) -> None:
        self.reaches_aws = False

    def __call__(self) -> Any:
        from tarry.tools.testing.own_client import make_own_client

        return make_own_client(self.reaches_aws)


CLIENT = pytest.StashKey[ClientOfRun]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let tarry's client reach AWS in a test that asks for it, and in the fixtures made for that test."""
    item.config.stash[CLIENT].reaches_aws = item.get_closest_marker("tarry_aws") is not None
    try:
        return (yield)
    finally:
        item.config.stash[CLIENT].reaches_aws = False


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Queues and functions in virtual time: `tarry.tools.testing.Sandbox`. `tarry.Queue` sends to them.

    Its settings come from ``@pytest.mark.sandbox(seed=1)``; ``--tarry-seed`` overrides the marker's seed, and
    ``--tarry-seeds`` runs the test with several.
    """
    from tarry.tools.testing.sandbox import Sandbox

    marker = request.node.get_closest_marker("sandbox")
    arguments, settings = (marker.args, dict(marker.kwargs)) if marker is not None else ((), {})
    seed = getattr(request, "param", request.config.getoption(OPTION))
    if seed is not None:
        settings["seed"] = seed
    key = _loaded("shrinking", "PARTS")  # set when the test runs again to shrink its case
    parts: Parts | None = None if key is None else request.node.stash.get(key, None)
    if parts is not None and settings.get("realism") is not None:
        settings["realism"] = parts.realism(settings["realism"])
    with Sandbox(*arguments, **settings) as made:
        if parts is not None:
            made.faults.parts = parts
        yield made


@pytest.fixture(autouse=True)
def _tarry_world() -> Iterator[None]:
    """Forget looked-up queues after each test: the next one may have another queue of the same name."""
    with use(current().afresh()):
        yield


BROKEN: pytest.StashKey[RuleBroken] = pytest.StashKey()
"""The error of a test that broke a rule, until its case is shrunk."""
SECTION = pytest.StashKey[tuple[str, str]]()
"""The title and text of the smallest case."""
SHRUNK = pytest.StashKey[set[str]]()
"""The tests of a run with a shrunk case: of a test that fails with many seeds, the first case is shrunk."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when != "teardown":
        error = _broken_rule(call)
        report.sections += [(f"sandbox, seed {made.seed}", _report_of(item, made, error)) for made in _sandboxes(item)]
        if report.when == "call" and error is not None:
            item.stash[BROKEN] = error
    if report.when == "teardown" and (section := item.stash.get(SECTION, None)) is not None:
        report.sections.append(section)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Shrink the case of a test that broke a rule, once it is torn down: for that it runs again."""
    yield
    error = item.stash.get(BROKEN, None)
    if error is None or not isinstance(item, pytest.Function):
        return
    del item.stash[BROKEN]
    shrunk = item.config.stash.setdefault(SHRUNK, set())
    if (test := _without_seed(item.nodeid)) in shrunk:
        return
    shrunk.add(test)
    from tarry.tools.testing.shrinking import smallest_case

    try:
        text = smallest_case(item, nextitem, error)
    except Exception as failure:  # noqa: BLE001 a failure to shrink must not hide why the test failed
        text = f"the case cannot be shrunk: {failure!r}"
    if text:
        # pytest shows a section of a passed teardown if its title names the teardown.
        item.stash[SECTION] = f"sandbox, seed {error.report.seed}, shrunk after teardown", text


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the first failing seed of each test, with the command that repeats it."""
    if config.getoption(SEEDS) is None:
        return
    run = _seeds_by_test(terminalreporter, "passed", "failed", "error", "xfailed", "xpassed")
    failed = _seeds_by_test(terminalreporter, "failed", "error")
    if failed:
        terminalreporter.section("sandbox: seeds that fail")
    for test, seeds in failed.items():
        found = f"{len(seeds)} of {len(run[test])} seeds failed, first {min(seeds)}"
        terminalreporter.write_line(f"{test}: {found}")
        terminalreporter.write_line(f"  to repeat it: {_command(test, min(seeds))}")


def _seeds_by_test(terminalreporter: Any, *outcomes: str) -> dict[str, set[int]]:
    """The seeds of the tests with these outcomes, by the id of the test without its seed."""
    found: dict[str, set[int]] = {}
    for outcome in outcomes:
        for report in terminalreporter.stats.get(outcome, ()):
            if (seed := SEED_OF_ID.search(report.nodeid)) is not None:
                found.setdefault(_without_seed(report.nodeid), set()).add(int(seed[2]))
    return found


def _without_seed(test: str) -> str:
    return SEED_OF_ID.sub(lambda seed: "" if seed[1] else "]", test)


def _command(test: str, seed: int) -> str:
    return f"pytest {shlex.quote(test)} {OPTION} {seed}"


def _loaded(module: str, name: str) -> Any:
    """An object of a module of this package; None if the run has not loaded that."""
    return getattr(sys.modules.get(f"tarry.tools.testing.{module}"), name, None)


def _broken_rule(call: pytest.CallInfo[None]) -> RuleBroken | None:
    """The error of the test, if it is that of a broken rule."""
    kind, error = _loaded("report", "RuleBroken"), call.excinfo.value if call.excinfo is not None else None
    return error if kind is not None and isinstance(error, kind) else None


def _sandboxes(item: pytest.Item) -> list[Sandbox]:
    """The sandboxes among the test's fixtures, each once: a fixture may return that of another."""
    if (kind := _loaded("sandbox", "Sandbox")) is None:
        return []
    given = getattr(item, "funcargs", {}).values()
    return list({id(each): each for each in given if isinstance(each, kind)}.values())


def _report_of(item: pytest.Item, made: Sandbox, error: RuleBroken | None) -> str:
    """The report of a sandbox, and the command. The error of a broken rule has its timelines already."""
    try:
        report = made.report()
        shown = str(report) if error is None else report.summary
    except Exception as broken:  # noqa: BLE001 a broken report must not hide why the test failed
        shown = f"the report cannot be made: {broken!r}"
    return f"{shown}\n\nto repeat it: {_command(_without_seed(item.nodeid), made.seed)}"
