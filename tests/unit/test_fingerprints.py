"""Fingerprints: the same for the same error at the same place, on any Python and whatever the code around it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry.message.diagnosis import diagnose
from tests.places import fingerprints

RECORDED = {
    "a_call_of_several_lines": "8a478aef8011",
    "a_list_comprehension": "abfb884680ec",
    "comprehensions_of_several_lines": "dee8584b02b4",
    "a_generator_within_a_comprehension": "c719b6807328",
    "a_comprehension_within_a_lambda": "220b99bd05e0",
    "a_lambda_called_by_a_library": "a83f40a1892a",
    "the_body_of_a_class": "832b2920c8ad",
    "decorators": "3ec3917b9b41",
    "a_dataclass": "3ff86734de3e",
    "a_context_manager": "60de22e10819",
    "a_finally": "109ceb239804",
    "an_error_raised_again": "461d1a9e8b35",
    "a_library": "d3769dbaa125",
    "a_syntax_error": "7cb6a771fe62",
    "a_module_that_is_not_there": "187c08852a98",
    "generated_code": "3cb960fe77c5",
    "a_group": "7b2760712079",
    "a_task_group": "a861f0cdbc54",
    "gathered": "449769e3f44e",
    "an_asynchronous_comprehension": "f7a18b04c54d",
    "an_endless_recursion": "81dc8d60431a",
}
"""Recorded with Python 3.11 to 3.14. If one of them changes, an upgrade of tarry splits the dead letters of one
error in a queue into two groups, although the user's code has not changed.
"""

OTHERS = [f"python3.{minor}" for minor in range(11, 20) if minor != sys.version_info.minor]


def test_the_fingerprints_are_the_same_on_every_python() -> None:  # SPEC F2
    assert fingerprints() == RECORDED


def test_the_fingerprints_of_another_python_on_this_machine_are_the_same() -> None:  # SPEC F2
    found = {name: results for name in OTHERS if (results := fingerprints_under(name)) is not None}
    if not found:
        pytest.skip("no other Python from 3.11 on is on the PATH")
    assert found == dict.fromkeys(found, RECORDED)


def fingerprints_under(name: str) -> dict[str, str] | None:
    """Return the fingerprints that another interpreter computes; None if there is no interpreter of that name."""
    if (interpreter := shutil.which(name)) is None:
        return None
    if subprocess.run([interpreter, "--version"], capture_output=True, check=False).returncode:
        return None  # the shim of a version manager for a version that is not selected
    script = "import json; from tests.places import fingerprints; print(json.dumps(fingerprints()))"
    paths = [Path(tarry.__file__).parents[1], Path(__file__).parents[2]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([interpreter, "-c", script], capture_output=True, text=True, check=True, env=environment)
    found: dict[str, str] = json.loads(result.stdout)
    return found


# the code around the place


def fingerprint_of(handler: Callable[[], Any]) -> str:
    """Return the fingerprint of the error that a handler raises, with a traceback that begins at the handler."""
    try:
        handler()
    except Exception as error:  # noqa: BLE001 it is fingerprinted
        trace = error.__traceback__
        return diagnose(error.with_traceback(trace and trace.tb_next)).fingerprint
    raise AssertionError("nothing was raised")


def handler_in(source: str, path: str = "/var/task/orders.py", **names: Any) -> Callable[[], Any]:
    module: dict[str, Any] = {"__name__": Path(path).stem, **names}
    exec(compile(source, path, "exec"), module)
    handler: Callable[[], Any] = module["handler"]
    return handler


FAILS = "def handler():\n    number = 1\n    raise ValueError(number)\n"


def test_the_place_is_the_same_wherever_the_code_is_deployed() -> None:  # SPEC F2
    paths = ("/var/task/orders.py", "/opt/python/orders.py", "C:\\work\\orders.py")
    assert len({fingerprint_of(handler_in(FAILS, path, __name__="orders")) for path in paths}) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/opt/python/lib/python3.13/site-packages/gateway/client.py",
        "/usr/lib/python3/dist-packages/gateway.py",
        "/var/lang/lib/python3.13/json/decoder.py",
        "/var/runtime/botocore/client.py",
        str(Path(os.__file__).parent / "json" / "decoder.py"),
        str(Path(tarry.__file__).parent / "message.py"),
        "<string>",
        "<attrs generated init orders.Order>",
        "<frozen importlib._bootstrap>",
    ],
    ids=os.path.basename,
)
def test_another_version_of_a_library_keeps_the_fingerprint(path: str) -> None:  # SPEC F2
    """Generated code, such as the `__init__` of a dataclass, counts as a library, and so does tarry."""
    libraries = (FAILS, "def handler(more=None):\n    def inner():\n        raise ValueError(7)\n\n    inner()\n")
    own = "def handler():\n    call()\n"
    found = {fingerprint_of(handler_in(own, call=handler_in(library, path))) for library in libraries}
    assert len(found) == 1
    assert found != {fingerprint_of(handler_in("def handler():\n    pass\n    call()\n", call=handler_in(FAILS, path)))}


def test_a_directory_whose_name_begins_with_that_of_a_library_is_user_code() -> None:  # SPEC F2
    beside = str(Path(tarry.__file__).parent) + "_extras/shop.py"
    sources = (FAILS, f"import os\n\n{FAILS}", "def handler():\n    raise ValueError(1)\n")
    one, other, elsewhere = (fingerprint_of(handler_in(source, beside)) for source in sources)
    assert one == other != elsewhere


def test_code_without_line_numbers_has_a_fingerprint() -> None:  # SPEC A2
    """Code that an instrumentation inserts into functions may have none."""

    def handler() -> None:
        raise ValueError

    handler.__code__ = handler.__code__.replace(co_linetable=b"")
    assert len(fingerprint_of(handler)) == 12
