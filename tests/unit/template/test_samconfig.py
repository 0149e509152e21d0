"""The samconfig file of a project."""

from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.template.finding import SamConfig, read_samconfig

CONFIG = """
version = 0.1
[default.deploy.parameters]
parameter_overrides = "Stage=\\"prod\\" Team='the team' ParameterKey=Size,ParameterValue=7 Unknown=1"
[default.global.parameters]
parameter_overrides = "Stage=dev Retries=4"
[test.global.parameters]
parameter_overrides = ["Stage=dev", "SubnetIds=a,b"]
[table.local_invoke.parameters.parameter_overrides]
Stage = "prod"
Size = 3
[broken.deploy.parameters]
parameter_overrides = "Stage"
"""


@pytest.mark.parametrize(
    ("environment", "values"),
    [
        (None, {"Stage": "prod", "Team": "the team", "Size": "7", "Unknown": "1", "Retries": "4"}),
        ("test", {"Stage": "dev", "SubnetIds": "a,b"}),
        ("table", {"Stage": "prod", "Size": "3"}),
    ],
)
def test_samconfig_has_parameters_by_environment_and_command(
    tmp_path: Path, environment: str | None, values: dict[str, str]
) -> None:
    (tmp_path / "samconfig.toml").write_text(CONFIG)
    for template in ("template.yaml", ".aws-sam/build/template.yaml", "cdk.out/App.template.json"):
        assert read_samconfig(tmp_path / template, environment).parameters == values


@pytest.mark.parametrize(
    ("config", "environment", "text"),
    [
        (CONFIG, "staging", "has no environment staging .--config-env.; it has default, test, table, broken"),
        (CONFIG, "broken", "parameter_overrides of broken.deploy.parameters must be NAME=VALUE ...: got 'Stage'"),
        ("[default", None, "samconfig.toml is not TOML"),
    ],
)
def test_a_samconfig_that_cannot_be_used_is_refused(
    tmp_path: Path, config: str, environment: str | None, text: str
) -> None:
    (tmp_path / "samconfig.toml").write_text(config)
    with pytest.raises(UsageError, match=text):
        read_samconfig(tmp_path / "template.yaml", environment)


def test_samconfig_names_the_stack_that_is_deployed(tmp_path: Path) -> None:
    (tmp_path / "samconfig.toml").write_text('[default.global.parameters]\nstack_name = "shop"')
    assert read_samconfig(tmp_path / "template.yaml", None).stack == "shop"


def test_a_project_need_not_have_a_samconfig(tmp_path: Path) -> None:
    assert read_samconfig(tmp_path / "template.yaml", None) == SamConfig()


@pytest.mark.parametrize("name", ["samconfig.yaml", "samconfig.yml"])
def test_samconfig_may_be_yaml_and_has_a_region(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "version: 0.1\n"
        "default:\n"
        "  global: {parameters: {region: eu-west-1}}\n"
        "  deploy: {parameters: {region: eu-central-1, parameter_overrides: [Stage=prod, Size=3]}}\n"
        "test: {deploy: {parameters: {parameter_overrides: {Debug: true}}}}\n"
    )
    template = tmp_path / "template.yaml"
    assert read_samconfig(template, None) == SamConfig({"Stage": "prod", "Size": "3"}, "eu-central-1")
    assert read_samconfig(template, "test") == SamConfig({"Debug": "true"})
    for text, problem in (("default: [", f"{name} is not YAML: "), ("text", f"{name} has no environments: ")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=problem):
            read_samconfig(template, None)
    (tmp_path / name).write_text("# empty")
    assert read_samconfig(template, None) == SamConfig()
    (tmp_path / "samconfig.toml").write_text("")
    assert read_samconfig(template, None) == SamConfig()
