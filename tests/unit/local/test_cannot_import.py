"""The error of a handler that cannot be imported, as `tarry local` shows it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tarry.tools.local.functions.code import CannotImport, FunctionCode
from tarry.tools.template import TemplateFunction

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


@pytest.mark.parametrize(
    ("why", "runtime", "text"),
    [
        (
            "module '@aws-sdk/client-s3'",
            "nodejs22.x",
            "; on Lambda, nodejs22.x has it, but this machine has not. To install it: "
            "cd orders && npm install --save-dev @aws-sdk/client-s3",
        ),
        ("module '@aws-sdk/client-s3'", "nodejs16.x", ". To install it: cd orders && npm install @aws-sdk/client-s3"),
        ("package 'left-pad' imported from /x/y.mjs", "nodejs22.x", ". To install it: cd orders && npm install"),
        ("module 'right-pad/lib'", "nodejs22.x", ". To install it: cd orders && npm install right-pad"),
    ],
)
def test_the_error_of_nodejs_for_a_package_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, runtime: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders/src").mkdir(parents=True)
    (tmp_path / "orders/package.json").write_text('{"dependencies": {"left-pad": "1"}}')
    code = replace(CODE, function=replace(CODE.function, code=Path("orders/src"), runtime=runtime))
    shown = CannotImport(code, f"Runtime.ImportModuleError: Error: Cannot find {why}", {"trace": ["Error", "  at x"]})
    assert (shown.why.partition(" is not installed")[2], shown.details) == (text, "")


@pytest.mark.parametrize("file", ["'./own'", "'/shop/own.mjs' imported from /shop/index.mjs", "'node:nothing'"])
def test_the_error_of_nodejs_for_a_file_is_shown_as_it_is(file: str) -> None:
    why = f"Runtime.ImportModuleError: Error: Cannot find module {file}"
    code = replace(CODE, function=replace(CODE.function, runtime="nodejs22.x"))
    shown = CannotImport(code, why, {"trace": ["Error", "  at x"]})
    assert (shown.why, shown.details, shown.is_not_installed) == (why, "Error\n  at x", False)
