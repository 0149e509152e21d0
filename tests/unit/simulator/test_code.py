"""The code of a function: imported at first use, with modules of its own."""

import sys
from pathlib import Path

import pytest

from tarry.tools.simulator.code import Code, CodeError
from tarry.tools.template import TemplateFunction
from tarry.tools.template.model import TemplateLayer


def code_in(
    folder: Path, text: str = "def handler(event, context): return event", handler: str = "app.handler"
) -> Code:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(text)
    return Code(TemplateFunction("F", "f", "arn:aws:lambda:us-east-1:123456789012:function:f", folder, handler), {})


def test_a_function_that_is_not_called_is_not_imported(tmp_path: Path) -> None:
    code_in(tmp_path, "raise RuntimeError('imported')")


def test_a_function_is_imported_once_and_its_modules_are_loaded_only_while_it_is_active(tmp_path: Path) -> None:
    code = code_in(tmp_path)
    with code.running():
        assert code.handler("event", None) == "event"
        assert sys.modules["app"] is code.load()
    assert "app" not in sys.modules
    assert code.load() is code.load()


def test_two_functions_may_each_have_an_app_module(tmp_path: Path) -> None:
    one = code_in(tmp_path / "one", "def handler(event, context): return 1")
    other = code_in(tmp_path / "other", "def handler(event, context): return 2")
    for code, answer in ((one, 1), (other, 2), (one, 1)):
        with code.running():
            assert code.handler({}, None) == answer


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
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(text)
        layers = (TemplateLayer(tmp_path / "layer"),)
        arn = f"arn:aws:lambda:us-east-1:123456789012:function:{name}"
        code = Code(TemplateFunction(name, name, arn, tmp_path / name, "app.handler", all_layers=layers), {})
        with code.running():
            found.append(code.handler({}, None))
    assert found == [(1, 1), (1, 2)]
    del sys.modules["compiled_package"]
    assert "own_package" not in sys.modules
    assert str(packages) not in sys.path


@pytest.mark.parametrize(
    ("text", "handler", "error"),
    [
        (
            "import no_such_library",
            "app.handler",
            "its handler app.handler cannot be imported from .*no_such_library",
        ),
        ("", "app.handler", "its handler app.handler cannot be imported from .*AttributeError"),
        ("", "", "F cannot run here: it needs a local CodeUri and a Handler"),
    ],
)
def test_code_that_cannot_be_imported_is_an_error_at_first_use(
    tmp_path: Path, text: str, handler: str, error: str
) -> None:
    code = code_in(tmp_path, text, handler)
    with pytest.raises(CodeError, match=error), code.running():
        pass


def test_code_that_a_build_has_yet_to_make_is_an_error_with_the_command(tmp_path: Path) -> None:
    code = code_in(tmp_path / "built", "")
    (tmp_path / "built" / "app.py").unlink()
    with (
        pytest.raises(CodeError, match=r"app\.handler is not in .*\. If a build makes it, run: sam build"),
        code.running(),
    ):
        pass
    (tmp_path / "built").rmdir()
    with pytest.raises(CodeError, match=r"is not a directory\. If a build makes it, run: sam build"), code.running():
        pass
