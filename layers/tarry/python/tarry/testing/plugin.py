"""The pytest plugin: the fixture ``sandbox``, its seed, the report of a failing test, and no requests to AWS.

pytest loads this module in every run wherever tarry is installed, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from tarry.world import current, use

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tarry.testing.sandbox import Sandbox

MARKERS = (
    "sandbox(seed=0, realism=None, start=...): the settings of the fixture `sandbox`, those of tarry.testing.Sandbox",
    "tarry_aws: tarry's own SQS client sends requests to AWS in this test",
)
OPTION = "--tarry-seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tarry")
    group.addoption(OPTION, type=int, metavar="N", help="the seed of every sandbox, before that of its test's marker")


def pytest_configure(config: pytest.Config) -> None:
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
        from tarry.testing.own_client import make_own_client

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
    """Queues and functions in virtual time: `tarry.testing.Sandbox`. `tarry.Queue` sends to them.

    Its settings come from ``@pytest.mark.sandbox(seed=1)``; ``--tarry-seed`` overrides the marker's seed.
    """
    from tarry.testing.sandbox import Sandbox

    marker = request.node.get_closest_marker("sandbox")
    arguments, settings = (marker.args, dict(marker.kwargs)) if marker is not None else ((), {})
    if (seed := request.config.getoption(OPTION)) is not None:
        settings["seed"] = seed
    with Sandbox(*arguments, **settings) as made:
        yield made


@pytest.fixture(autouse=True)
def _tarry_world() -> Iterator[None]:
    """Forget looked-up queues after each test: the next one may have another queue of the same name."""
    with use(current().afresh()):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when != "teardown":
        report.sections += [(f"sandbox, seed {made.seed}", _report_of(item, made)) for made in _sandboxes(item)]
    return report


def _sandboxes(item: pytest.Item) -> list[Sandbox]:
    """The sandboxes among the test's fixtures, each once: a fixture may return that of another."""
    import sys

    module = sys.modules.get("tarry.testing.sandbox")
    if module is None:
        return []
    given = getattr(item, "funcargs", {}).values()
    return list({id(each): each for each in given if isinstance(each, module.Sandbox)}.values())


def _report_of(item: pytest.Item, made: Sandbox) -> str:
    command = f"pytest {shlex.quote(item.nodeid)} {OPTION} {made.seed}"
    try:
        report = str(made.report())
    except Exception as error:  # noqa: BLE001 a broken report must not hide why the test failed
        report = f"the report cannot be made: {error!r}"
    return f"{report}\n\nto repeat it: {command}"
