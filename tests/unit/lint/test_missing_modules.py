"""Modules that a function imports and that its build does not contain; functions under another Python."""

from pathlib import Path

import pytest

from tarry.tools.check.facts import is_removed
from tarry.tools.check.rules.code import missing_modules, other_python
from tarry.tools.check.sources import OutsideImport
from tarry.tools.check.start import findings_at_start
from tarry.tools.template import read_template

from .conftest import Find

REPOSITORY = Path(__file__).parents[3]

POWERTOOLS = """
from __future__ import annotations

import json
from typing import TYPE_CHECKING

import boto3
from aws_lambda_powertools import Logger, Tracer
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import ClientError
from dateutil import parser
from pydantic import BaseModel

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
try:
    import orjson
except ImportError:
    orjson = json

def handler(event, context): ...
"""
REQUESTS = {"src/app.py": "import requests"}
WITH_SHARED = "Layers: [!Ref Shared]"
LAYER_OF_AWS = "arn:aws:lambda:${AWS::Region}:017000801446:layer:AWSLambdaPowertoolsPythonV3-python313-x86_64:12"
SHARED_LAYER = """
Shared:
  Type: AWS::Serverless::LayerVersion
  Properties: {ContentUri: layers/shared}
  Metadata: {BuildMethod: python3.13}
"""
SHARED_FILES = {
    "src/app.py": "import requests\nfrom shared.text import clean\nimport tarry",
    "layers/shared/requirements.txt": "requests",
    "layers/shared/shared/text.py": "clean = str",
    "layers/shared/tarry/__init__.py": "",
}
COPIED_LAYER = SHARED_LAYER.replace("python3.13}", "makefile}")
MAKEFILE_OF_TARRY = (REPOSITORY / "layers/tarry/Makefile").read_text()
MAKEFILE = (
    'build-Shared:\n\tmkdir -p "$(ARTIFACTS_DIR)/python"\n\tcp -R shared tarry "$(ARTIFACTS_DIR)/python" && rm -rf x\n'
)


UNCERTAIN: dict[str, tuple[dict[str, str], str, str]] = {
    "the Powertools layer of AWS": ({"src/app.py": POWERTOOLS}, f"Layers: [!Sub '{LAYER_OF_AWS}']", ""),
    "the Powertools layer by its public parameter": (
        {"src/app.py": POWERTOOLS},
        "Layers: ['{{resolve:ssm:/aws/service/powertools/python/arm64/python3.13/latest}}']", ""),
    "requirements with what they require, by import name": ({
        "src/app.py": POWERTOOLS + "import typing_extensions, aws_xray_sdk, requests, yaml",
        "src/requirements.txt": (
            "# of the build\n-r more.txt\n--index-url https://example.com\n"
            "aws-lambda-powertools[parser,tracer] == 3.* ; python_version >= '3.9' \\\n  --hash=sha256:0\n"),
        "src/more.txt": "requests>=2 # http\nPy_YAML"}, "", ""),
    "a requirement whose own requirements are not known here": (
        {**REQUESTS, "src/requirements.txt": "company-library-that-is-not-installed"}, "", ""),
    "a path": ({**REQUESTS, "src/requirements.txt": "./libraries/http"}, "", ""),
    "a lock file to export from": ({**REQUESTS, "poetry.lock": ""}, "", ""),
    "another manifest": (
        {**REQUESTS, "samconfig.toml": '[default.build.parameters]\nmanifest = "all.txt"'}, "", ""),
    "another path": ({"src/app.py": "import sys\nsys.path.insert(0, 'vendor')\nimport requests"}, "", ""),
    "packages and extension modules in the code": ({
        "src/app.py": "import requests, fast",
        "src/requests/__init__.py": "import charset_of_its_own",
        "src/requests-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: requests\nVersion: 2.0\n",
        "src/requests-2.0.dist-info/top_level.txt": "requests",
        "src/fast.cpython-313-x86_64-linux-gnu.so": ""}, "", ""),
    "a layer with requirements": (SHARED_FILES, WITH_SHARED, SHARED_LAYER),
    "a layer that a Makefile copies": (
        {**SHARED_FILES, "src/requirements.txt": "requests", "layers/shared/Makefile": MAKEFILE},
        WITH_SHARED, COPIED_LAYER),
    "the layer of tarry": (
        {**SHARED_FILES, "src/requirements.txt": "requests", "layers/shared/Makefile": MAKEFILE_OF_TARRY},
        WITH_SHARED, COPIED_LAYER),
    "a layer that a Makefile installs": (
        {**REQUESTS, "layers/shared/Makefile": "build-Shared:\n\tpip install requests\n"}, WITH_SHARED, COPIED_LAYER),
    "a layer without a build": (
        {**REQUESTS, "layers/shared/python/requests/__init__.py": ""},
        WITH_SHARED, SHARED_LAYER.replace("  Metadata: {BuildMethod: python3.13}", "")),
    "an unknown layer": (REQUESTS, "Layers: ['arn:aws:lambda:us-east-1:1:layer:other:3']", ""),
    "a layer of another stack": (REQUESTS, "Layers: [!ImportValue SharedLayer]", ""),
    "imports under a condition": ({"src/app.py": """
        import platform
        from contextlib import suppress

        with suppress(ImportError):
            import requests
        if platform.system() == "Darwin":
            import yaml
        def handler(event, context):
            try:
                import moto
            except Exception:
                import flask
        """}, "", ""),
    "a file that cannot be parsed": ({"src/app.py": "def handler(:"}, "", ""),
}  # fmt: skip
"""Files, properties of the function, and more resources."""


@pytest.mark.parametrize("case", UNCERTAIN)
def test_no_warning_if_a_build_has_all_modules_or_it_is_not_certain(find: Find, case: str) -> None:
    assert find(*UNCERTAIN[case]) == []


LACKS = "imports requests (src/app.py:1), which its build does not contain. Add requests to src/requirements.txt."
MISSING: dict[str, tuple[dict[str, str], str]] = {
    "no requirements": (
        {"src/app.py": "import json\nimport requests, yaml\n"},
        "imports requests (src/app.py:2) and yaml (src/app.py:2), which its build does not contain. "
        "Add requests and PyYAML to src/requirements.txt."),
    "an extra that is not required": (
        {"src/app.py": POWERTOOLS, "src/requirements.txt": "aws-lambda-powertools[tracer]"},
        "imports pydantic (src/app.py:12), which its build does not contain. Add pydantic to src/requirements.txt."),
    "a requirement that is not for Linux": (
        {**REQUESTS, "src/requirements.txt": "requests; sys_platform == 'darwin'"}, LACKS),
    "requirements where sam build does not look": (
        {**REQUESTS, "requirements.txt": "requests", "pyproject.toml": ""}, LACKS),
    "a module that is reached through packages, namespaces and relative imports": ({
        "src/app.py": "from acme.orders.handlers import main\nfrom acme.orders.handlers.main import handler",
        "src/acme/orders/__init__.py": "from .models import Order",
        "src/acme/orders/models.py": "class Order: ...",
        "src/acme/orders/handlers/main.py": "from .. import models, service\nfrom ...shared.text import clean",
        "src/acme/orders/service.py": "import boto3\ndef send():\n    from . import lazy",
        "src/acme/orders/lazy.py": "import requests",
        "src/acme/shared/text.py": "clean = str",
        "src/unused.py": "import yaml"}, LACKS.replace("app.py", "acme/orders/lazy.py")),
    "a module of no package": (
        {"src/app.py": "from tests import places"},
        "imports tests (src/app.py:1), which its build does not contain. "
        "Move it into src, or add a package that contains it to src/requirements.txt."),
    "a module that is not here either": (
        {"src/app.py": "import tests, not_on_this_machine"},
        "imports tests (src/app.py:1) and not_on_this_machine (src/app.py:1), which its build does not contain. "
        "Move them into src, or add packages that contain them to src/requirements.txt."),
    "tarry without its layer": (
        {"src/app.py": "from tarry import consumer\n@consumer\nasync def other(message): ..."},
        "imports tarry (src/app.py:1), which its build does not contain. Add the tarry layer to its Layers."),
}  # fmt: skip


@pytest.mark.parametrize("case", MISSING)
def test_a_module_that_the_build_lacks_is_named_with_its_place_and_the_remedy(find: Find, case: str) -> None:
    files, expected = MISSING[case]
    [finding] = find(files)
    assert (finding.rule, finding.functions, finding.text) == (
        "W9001", ("OrdersFunction",), f"OrdersFunction {expected}"
    )  # fmt: skip


def test_a_module_that_python_removed_is_missing_from_that_version_on() -> None:
    assert [version for version in (11, 12, 13, 14) if is_removed("telnetlib", (3, version))] == [13, 14]
    imports = [OutsideImport("distutils", Path("src/app.py"), 3)]
    [finding] = missing_modules(["A", "B"], imports, (3, 12), Path("src"), lambda module: None)
    assert finding.text == "A and B import distutils (src/app.py:3), which Python 3.12 no longer has. Replace it."


def test_functions_that_share_code_share_a_warning(find: Find) -> None:
    second = """
        BillingFunction:
          Type: AWS::Serverless::Function
          Properties:
            Runtime: python3.13
            CodeUri: src
            Handler: app.handler
            Events: {Orders: {Type: SQS, Properties: {Queue: !GetAtt OrdersQueue.Arn}}}
    """
    [finding] = find(REQUESTS, resources=second)
    assert finding.text.startswith("OrdersFunction and BillingFunction import requests (src/app.py:1), which their")


def edited(old: str, new: str, to: str = "template.yaml") -> list[str]:
    """Change the template of the project, and return the texts of its findings of W9001."""
    Path(to).write_text(Path("template.yaml").read_text().replace(old, new, 1))
    read = read_template(to)
    return [each.text for each in findings_at_start(read, read.mappings, (3, 13)) if each.rule == "W9001"]


BY_A_MAKEFILE = ("    Prop", "    Metadata: {BuildMethod: makefile}\n    Prop")


def test_a_function_that_a_makefile_builds_is_not_judged(find: Find) -> None:
    assert len(find(REQUESTS)) == 1
    assert edited(*BY_A_MAKEFILE) == []


PACKAGES = {
    "src/app.py": "import flat\nfrom pricing import rates\nfrom tests.samples import ONE\nimport requests",
    "src/flat.py": "",
    "src/pricing/__init__.py": "",
    "src/pricing/rates.py": "",
    "src/tests/samples.py": "ONE = 1",
}
PRICING = "src/pricing/__init__.py and src/pricing/rates.py"


@pytest.mark.parametrize(
    ("recipe", "left_out", "is_judged"),
    [
        ("$(build_function)", "src/tests/samples.py", True),
        ('cp *.py "$(ARTIFACTS_DIR)/"', f"{PRICING.replace(' and', ',')} and src/tests/samples.py", True),
        ("@cp -R app.py flat.py tests $(ARTIFACTS_DIR)", PRICING, True),
        ("mkdir -p x\n\tcp -R . $(ARTIFACTS_DIR)", "", True),
        ("cp app.py $(ARTIFACTS_DIR)/lib", "", False),
        ("python -m bundle", "", False),
        ("cp $(FILES) $(ARTIFACTS_DIR)", "", False),
        ("cp", "", False),
    ],
)
def test_a_file_that_the_function_loads_and_its_makefile_does_not_copy_is_named(
    find: Find, recipe: str, left_out: str, *, is_judged: bool
) -> None:
    other = "build-Other:\n\tcp app.py $(ARTIFACTS_DIR)\n"
    find({**PACKAGES, "src/Makefile": f"include x.mk\n\nbuild-OrdersFunction:\n\t{recipe}\n\n{other}"})
    texts = edited(*BY_A_MAKEFILE)
    expected = (
        f"OrdersFunction loads {left_out}, which src/Makefile does not copy into its build. "
        'To copy the whole directory: cp -R . "$(ARTIFACTS_DIR)/"'
    )
    assert [text for text in texts if " loads " in text] == ([expected] if left_out else [])
    lacks = "OrdersFunction imports requests (src/app.py:4), which its build does not contain."
    assert any(text.startswith(lacks) for text in texts) == is_judged


@pytest.mark.parametrize("handler", ["handler", "app..handler", ".handler", "../app.handler", "src/app.handler"])
def test_a_handler_that_cannot_be_found_is_not_judged(find: Find, handler: str) -> None:
    find({"src/app.py": "import json"}, f"Handler: {handler}")
    assert edited("CodeUri: src", "CodeUri: .", "src/template.yaml") == []


MODEL = """
import tarry as t
from pydantic import BaseModel
from tarry import Message, consumer

class Invoice(BaseModel): ...

@consumer
def handler(message: Message[Invoice]): ...

@consumer(model=Invoice)
def by_setting(message): ...

@t.batch_consumer(max_attempts=3)
def batch(invoices: "t.Batch[Invoice]"): ...

@consumer
def without(message: Message): ...
"""


@pytest.mark.parametrize(("handler", "line"), [("handler", 9), ("by_setting", 11), ("batch", 15), ("without", None)])
def test_a_consumer_with_a_model_needs_the_parser_of_powertools(find: Find, handler: str, line: int | None) -> None:
    """It is one warning, also if the code imports pydantic, which alone would not do."""
    needs_parser = (
        f"OrdersFunction has a model (src/app.py:{line}), for which tarry needs Powertools' parser, which its build "
        "does not contain. Add aws-lambda-powertools[parser] to src/requirements.txt, or the Powertools layer to its "
        "Layers."
    )
    needs_pydantic = (
        "OrdersFunction imports pydantic (src/app.py:3), which its build does not contain. Add pydantic to "
        "src/requirements.txt."
    )
    for requirements, expected in {
        "": needs_parser if line else needs_pydantic,
        "pydantic": needs_parser if line else None,
        "aws-lambda-powertools": needs_parser if line else needs_pydantic,
        "aws-lambda-powertools[parser]": None,
    }.items():
        files = {"src/app.py": MODEL, "src/requirements.txt": requirements, "src/tarry/__init__.py": ""}
        found = find(files, f"Handler: app.{handler}")
        assert [each.text for each in found if each.rule == "W9001"] == [expected] * (expected is not None)


REMEDY = "To run them under 3.13 here too, install tarry under Python 3.13."


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, None),
        ({"A": (3, 11)}, None),
        ({"A": (3, 13), "B": (3, 13)},
         f"Functions run under Python 3.11 here; the template says python3.13. {REMEDY}"),
        ({"A": (3, 13), "B": (3, 11)}, f"A runs under Python 3.11 here; the template says python3.13. {REMEDY}"),
        ({"A": (3, 8)},
         "Functions run under Python 3.11 here; the template says python3.8. "
         "tarry needs Python 3.11 or later: update the Runtime."),
        ({"A": (3, 13), "B": (3, 12), "C": (3, 13)},
         "Functions run under Python 3.11 here; the template says python3.12 (B) and python3.13 (A, C). "
         "To run a function under its own version, install tarry under that version."),
    ],
)  # fmt: skip
def test_all_functions_under_another_python_are_one_warning(
    versions: dict[str, tuple[int, int]], expected: str | None
) -> None:
    assert [each.text for each in other_python(versions, (3, 11))] == [expected] * (expected is not None)
