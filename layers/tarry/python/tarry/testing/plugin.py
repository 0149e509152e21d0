"""The pytest plugin under the name that projects know: its code is in `tarry.tools.testing.plugin`."""

from tarry.tools.testing.plugin import (
    _tarry_world,
    pytest_addoption,
    pytest_configure,
    pytest_generate_tests,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
    pytest_terminal_summary,
    sandbox,
)

__all__ = [
    "_tarry_world",
    "pytest_addoption",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
    "sandbox",
]
