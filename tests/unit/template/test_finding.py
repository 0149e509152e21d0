"""The template of a project that names none, and its samconfig file."""

from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.template.finding import SamConfig, find_template, project_of, read_samconfig

MAPPING = '{"Resources": {"M": {"Type": "AWS::Lambda::EventSourceMapping"}}}'


def write(folder: Path, name: str, text: str = "{}") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_sources_are_found_before_builds(tmp_path: Path) -> None:
    write(tmp_path, "cdk.out/nested/App.nested.template.json")
    builds = ("cdk.out/App.template.json", ".aws-sam/build/template.yaml")
    for name in (*builds, "template.json", "template.yml", "template.yaml"):
        write(tmp_path, name)
        assert find_template(tmp_path) == tmp_path / name
        assert project_of(tmp_path / name) == tmp_path


def test_of_several_stacks_the_one_that_consumes_a_queue_is_found(tmp_path: Path) -> None:
    write(tmp_path, "cdk.out/Network.template.json")
    write(tmp_path, "cdk.out/assembly-Prod/App.template.json", MAPPING)
    assert find_template(tmp_path) == tmp_path / "cdk.out/assembly-Prod/App.template.json"
    assert project_of(find_template(tmp_path)) == tmp_path
    write(tmp_path, "cdk.out/Other.template.json", MAPPING)
    with pytest.raises(UsageError, match=r"several stacks: name one with --template: .*Other.*assembly-Prod/App"):
        find_template(tmp_path)


def test_a_project_without_a_template_is_refused_with_the_places_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no template here \(template.yaml, .*cdk.out.*name one with --template FILE"):
        find_template(tmp_path)
    write(tmp_path, "cdk.json")
    with pytest.raises(UsageError, match=r"cdk\.json is here, so make one with cdk synth$"):
        find_template(tmp_path)


CONFIG = """
version = 0.1
[default.deploy.parameters]
parameter_overrides = "Stage=\\"prod\\" Team='the team' ParameterKey=Size,ParameterValue=7 Unknown=1"
[default.global.parameters]
stack_name = "shop"
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
        found = read_samconfig(tmp_path / template, environment)
        assert (found.parameters, found.stack) == (values, None if environment else "shop")


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


@pytest.mark.parametrize("name", ["samconfig.yaml", "samconfig.yml"])
def test_samconfig_may_be_yaml_and_has_a_region(tmp_path: Path, name: str) -> None:
    template = tmp_path / "template.yaml"
    assert read_samconfig(template, None) == SamConfig(), "a project need not have one"
    (tmp_path / name).write_text(
        "version: 0.1\n"
        "default:\n"
        "  global: {parameters: {region: eu-west-1}}\n"
        "  deploy: {parameters: {region: eu-central-1, parameter_overrides: [Stage=prod, Size=3]}}\n"
        "test: {deploy: {parameters: {parameter_overrides: {Debug: true}}}}\n"
    )
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
