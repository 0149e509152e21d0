"""Hooks and fixtures for all tests."""

import gc
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from types import FunctionType
from typing import Any

import botocore.hooks
import botocore.session
import pytest
import samtranslator.translator.translator
import typer.main
import typer.testing
from botocore.loaders import Loader, create_loader
from hypothesis import settings

from tarry.tools.simulator.sqs import Sqs
from tests.checked_answers import with_checked_answers
from tests.command import stop_server
from tests.leftovers import Leftovers, LeftoversOfTests

settings.register_profile("any machine", deadline=None)  # a busy machine must not fail a test
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Register the checks for leftovers; a worker of pytest-xdist inherits the mark of its run."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Leftovers())
    config.pluginmanager.register(LeftoversOfTests())


def pytest_xdist_auto_num_workers() -> int | None:
    """Return two workers more than there are cores: they work while others wait for a process or a timeout."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


@pytest.fixture(scope="session", autouse=True)
def _service_models_are_loaded_once() -> Iterator[None]:
    """Let all boto3 sessions share one loader of the service models: loading them takes longer than most tests."""
    loaders: dict[str | None, Loader] = {}

    def shared(search_path_string: str | None = None) -> Loader:
        if search_path_string not in loaders:
            loaders[search_path_string] = create_loader(search_path_string)
        return loaders[search_path_string]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", shared)
        yield


@pytest.fixture(scope="session", autouse=True)
def _handlers_of_boto3_are_checked_once() -> Iterator[None]:
    """Let all boto3 sessions share the names of events, and the look at the handlers of botocore, which registers 150.

    Both take most of the time in which a session is made; each command makes several.
    """
    names: dict[str, str] = {}
    make, look, known = botocore.hooks.EventAliaser.__init__, botocore.hooks.accepts_kwargs, set[Any]()

    def made(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        self._alias_name_cache = names

    def accepts_kwargs(handler: Any) -> Any:
        if handler in known:
            return True
        found: Any = look(handler)
        if found and isinstance(handler, FunctionType) and "<locals>" not in handler.__qualname__:
            known.add(handler)  # it is in a module, and stays
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.hooks.EventAliaser, "__init__", made)
        patch.setattr(botocore.hooks, "accepts_kwargs", accepts_kwargs)
        yield


@pytest.fixture(scope="session", autouse=True)
def _moto_answers_boto3_alone() -> Iterator[None]:
    """Let `mock_aws` start and answer faster: without the thousand mocks that it makes for the library requests."""
    with pytest.MonkeyPatch.context() as patch:
        if utils := sys.modules.get("moto.core.utils"):
            patch.setattr("moto.core.models.RESPONSES_METHODS", [])
            patch.setattr("moto.core.responses.camelcase_to_underscores", cache(utils.camelcase_to_underscores))
        yield


@pytest.fixture(scope="session", autouse=True)
def _policy_templates_are_read_once() -> Iterator[None]:
    """Let all translations share SAM's policy templates: reading them takes seven of eight parts of a translation."""
    name = "make_policy_template_for_function_plugin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            samtranslator.translator.translator, name, cache(getattr(samtranslator.translator.translator, name))
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Let all calls of the command in this process share its options: building them takes longer than most calls."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (typer.main, typer.testing):
            name = "get_command" if module is typer.main else "_get_command"
            patch.setattr(module, name, cache(getattr(module, name)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _instances_of_tarry_local_are_those_of_the_tests(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Let `tarry local` write the file by which other commands find it into a directory of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_are_in_a_directory_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let each worker see which temporary files its tests leave behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _archives_and_audits_are_those_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let `tarry failed` write its archives and its audit into a directory of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _answers_of_the_model_fit_the_service_model() -> Iterator[None]:
    """Check each answer of the model of SQS. Only a bug of the model makes one that does not fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sqs, "answer", with_checked_answers(Sqs.answer))
        yield


@pytest.fixture(scope="session", autouse=True)
def _server_of_commands_ends_with_the_tests() -> Iterator[None]:
    yield
    stop_server()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a test that ends what its module shares after the others of the module, whatever the random order."""
    for last in [item for item in items if item.get_closest_marker("last_of_its_module")]:
        items.remove(last)
        items.insert(max(index for index, item in enumerate(items) if item.path == last.path) + 1, last)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect the tests without garbage collections, a quarter of the time: each one looks at all earlier objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from garbage collections: no Lambda process has as many objects."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the order of the tests, and in one line what was skipped, with the reasons.

    ``TARRY_TESTS_NEED`` has words separated by commas: a reason with one of them fails the run. CI names the optional
    parts there that it has installed.
    """
    if seed := getattr(terminalreporter.config.option, "randomly_seed", None):
        terminalreporter.line(f"The same order again: pytest --randomly-seed={seed}")
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.line("Skipped: " + "; ".join(f"{reason} ({count})" for reason, count in reasons.items()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    needed = [word for word in os.environ.get("TARRY_TESTS_NEED", "").split(",") if word]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [str(report.longrepr) for report in reporter.stats.get("skipped", [])] if reporter else []
    missing = [word for word in needed if any(word in reason for reason in skipped)]
    if reporter and missing:
        reporter.line(f"\nTests are skipped though TARRY_TESTS_NEED has {', '.join(missing)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Escape captured text: tests log lone surrogates on purpose, which a worker of pytest-xdist cannot send."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture
def without_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the loggers of other tests: with a `Logger` of Powertools, tarry sets the keys of each message."""
    monkeypatch.setattr(logging.root.manager, "loggerDict", {})


@pytest.fixture
def without_tracers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the tracing libraries that other tests have loaded: with one of them, tarry looks for a span of each run."""
    for name in ("opentelemetry.trace", "aws_xray_sdk.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
