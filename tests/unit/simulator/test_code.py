"""The code of a function: imported at first use, with modules of its own."""

import sys
from pathlib import Path

import pytest

from tarry.tools.simulator.code import Code, CodeError
from tarry.tools.template import TemplateFunction
from tarry.tools.template.model import TemplateLayer

ARN = "arn:aws:lambda:us-east-1:123456789012:function:f"


def code_in(
    folder: Path,
    text: str = "def handler(event, context): return event",
    handler: str = "app.handler",
    layers: tuple[TemplateLayer, ...] = (),
) -> Code:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(text)
    return Code(TemplateFunction("F", "f", ARN, folder, handler, all_layers=layers), {})


def test_a_function_is_imported_once_when_it_is_called_and_its_modules_are_loaded_only_while_it_is_active(
    tmp_path: Path,
) -> None:
    code_in(tmp_path / "never called", "raise RuntimeError('imported')")
    codes = [code_in(tmp_path / name, f"def handler(event, context): return '{name}'") for name in ("one", "other")]
    for code, answer in ((codes[0], "one"), (codes[1], "other"), (codes[0], "one")):  # each may have an app module
        with code.running():
            assert code.handler({}, None) == answer
            assert sys.modules["app"] is code.load()
        assert "app" not in sys.modules
    assert codes[0].load() is codes[0].load()


def test_the_modules_of_a_layer_belong_to_each_function_except_compiled_ones(tmp_path: Path) -> None:
    packages = tmp_path / "layer" / "python"
    for name in ("own_package", "compiled_package"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text("loaded_by = []")
    (packages / "compiled_package" / "core.cpython-313.so").touch()
    text = """
import compiled_package, own_package

def handler(event, context):
    for package in (own_package, compiled_package):
        package.loaded_by.append(event)
    return len(own_package.loaded_by), len(compiled_package.loaded_by)
"""
    found = []
    for name in ("one", "other"):
        code = code_in(tmp_path / name, text, layers=(TemplateLayer(tmp_path / "layer"),))
        with code.running():
            found.append(code.handler({}, None))
    assert found == [(1, 1), (1, 2)]
    del sys.modules["compiled_package"]
    assert "own_package" not in sys.modules
    assert str(packages) not in sys.path


NOT_IMPORTED = r"its handler app\.handler cannot be imported from "


@pytest.mark.parametrize(
    ("text", "handler", "error"),
    [
        ("import no_such_library", "app.handler", f"{NOT_IMPORTED}.*no_such_library"),
        ("", "app.handler", f"{NOT_IMPORTED}.*AttributeError"),
        ("", "", "F cannot run here: it needs a local CodeUri and a Handler"),
        ("", "no file", r"app\.handler is not in .*\. If a build makes it, run: sam build"),
        ("", "no folder", r"is not a directory\. If a build makes it, run: sam build"),
    ],
)
def test_code_that_cannot_be_imported_is_an_error_at_first_use(
    tmp_path: Path, text: str, handler: str, error: str
) -> None:
    code = code_in(tmp_path / "built", text, "app.handler" if handler.startswith("no ") else handler)
    if handler.startswith("no "):
        (tmp_path / "built" / "app.py").unlink()
    if handler == "no folder":
        (tmp_path / "built").rmdir()
    with pytest.raises(CodeError, match=error), code.running():
        pass
