"""The error of a handler that cannot be imported, as `tarry local` shows it."""

from pathlib import Path

import pytest

from tarry.local.functions.code import CannotImport, FunctionCode
from tarry.template import TemplateFunction

FRAME = '  File "/shop/{}", line 14, in <module>\n    @consumer(model=str)\n'
CODE = FunctionCode(
    TemplateFunction("Orders", "Orders", "arn:aws:lambda:us-east-1:1:function:Orders", Path("orders"), "app.handler"),
    {"PYTHONPATH": "/shop/tarry:/shop/layers"},
)


def test_a_mistake_in_the_settings_is_shown_without_the_frames_of_tarry() -> None:
    frames = [FRAME.format("tarry/orders/app.py"), FRAME.format("layers/tarry/consumer.py")]
    error = {"errorType": "ConfigurationError", "errorMessage": "not str", "stackTrace": frames}
    shown = CannotImport(CODE, "ConfigurationError: not str", error)
    assert shown.details == f"Traceback (most recent call last):\n{frames[0].rstrip()}\nConfigurationError: not str"
    assert shown.frames == shown.details.removesuffix("\nConfigurationError: not str")
    bug = CannotImport(CODE, "KeyError: 'x'", {**error, "errorType": "KeyError"})
    assert "layers/tarry/consumer.py" in bug.details


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("UserCodeSyntaxError", "Syntax error in module 'app': invalid (app.py, line 3)", "SyntaxError: invalid (app"),
        ("ImportModuleError", "Unable to import module 'app': No module named 'x'", "ImportError: No module named"),
    ],
)
def test_an_error_of_lambda_is_shown_with_the_name_that_python_gives_it(kind: str, text: str, shown: str) -> None:
    error = {"errorType": f"Runtime.{kind}", "errorMessage": text}
    assert CannotImport(CODE, "", error).details.startswith(shown)
