"""The environment variables of function processes."""

import os
from pathlib import Path

from tarry.tools.local.functions.code import Endpoints, variables_of
from tarry.tools.template import TemplateFunction
from tarry.tools.template.model import TemplateLayer

HERE = "http://127.0.0.1:4576"
DEVELOPER = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "DATABASE": "mine",
    "AWS_PROFILE": "production",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_ENDPOINT_URL_SQS": "http://elsewhere",
    "NO_PROXY": "intranet",
}


def function(code: Path = Path("code"), *layers: Path) -> TemplateFunction:
    arn = "arn:aws:lambda:eu-west-1:123456789012:function:orders"
    found = tuple(TemplateLayer(each) for each in layers)
    return TemplateFunction("Orders", "orders", arn, code, "app.handler", memory_mb=512, all_layers=found)


def variables(endpoints: Endpoints, **own: str) -> dict[str, str]:
    return variables_of(function(), own, endpoints, DEVELOPER)


def test_the_variables_of_lambda_are_set_and_no_credentials_of_the_developer() -> None:
    found = variables(Endpoints(HERE, others="http://127.0.0.1:5000"), AWS_LAMBDA_LOG_LEVEL="DEBUG")
    assert found["_HANDLER"] == "app.handler"
    assert found["LAMBDA_TASK_ROOT"] == str(Path("code").resolve())
    assert found["AWS_REGION"] == found["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert found["AWS_LAMBDA_FUNCTION_NAME"] == "orders"
    assert found["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "512"
    assert found["AWS_LAMBDA_LOG_LEVEL"] == "DEBUG", "that of the function has precedence"
    assert found["TZ"] == ":UTC"
    assert found["PATH"] == "/bin"
    assert found["NO_PROXY"] == "intranet,127.0.0.1"
    assert (found["AWS_ENDPOINT_URL"], found["AWS_ENDPOINT_URL_SQS"]) == ("http://127.0.0.1:5000", HERE)
    assert found["AWS_ACCESS_KEY_ID"] == "local"
    assert not {"HOME", "DATABASE", "AWS_PROFILE"} & found.keys()
    assert "secret" not in found.values()


def test_a_foreign_endpoint_gets_the_keys_of_the_environment_and_no_profile() -> None:
    found = variables(Endpoints("http://localstack:4566", is_foreign=True))
    assert found["AWS_ACCESS_KEY_ID"] == "key"
    assert "AWS_PROFILE" not in found
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == os.devnull


def test_aws_gets_the_profile_of_the_developer_and_only_sqs_has_an_endpoint() -> None:
    found = variables(Endpoints("https://sqs.eu-west-1.amazonaws.com", is_foreign=True))
    assert (found["AWS_PROFILE"], found["HOME"]) == ("production", "/home/me")
    assert found["AWS_ENDPOINT_URL_SQS"] == "https://sqs.eu-west-1.amazonaws.com"
    assert "AWS_ENDPOINT_URL" not in found


def test_code_precedes_layers_and_later_layers_precede_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "first" / "python").mkdir(parents=True)
    (tmp_path / "built").mkdir()  # sam build creates python/
    given = function(tmp_path / "code", tmp_path / "first", tmp_path / "built")
    path = variables_of(given, {}, Endpoints(HERE), {"PYTHONPATH": "mine"})["PYTHONPATH"].split(os.pathsep)
    wanted = [tmp_path / "code", tmp_path / "built", tmp_path / "first" / "python", Path("mine").resolve()]
    assert path[:4] == [str(each) for each in wanted]
