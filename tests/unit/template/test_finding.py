"""The template of a project that names none."""

from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.template.finding import find_template, project_of

MAPPING = '{"Resources": {"M": {"Type": "AWS::Lambda::EventSourceMapping"}}}'


def write(folder: Path, name: str, text: str = "{}") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_sources_are_found_before_builds(tmp_path: Path) -> None:
    write(tmp_path, "cdk.out/nested/App.nested.template.json")
    for name in (
        "cdk.out/App.template.json",
        ".aws-sam/build/template.yaml",
        "template.json",
        "template.yml",
        "template.yaml",
    ):
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


def test_a_project_without_a_template_is_refused_with_the_places_and_the_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no template here \(template.yaml, .*cdk.out.*name one with --template FILE"):
        find_template(tmp_path)


def test_in_a_cdk_project_that_was_not_synthesized_the_error_names_the_command(tmp_path: Path) -> None:
    write(tmp_path, "cdk.json")
    with pytest.raises(UsageError, match=r"cdk\.json is here, so make one with cdk synth$"):
        find_template(tmp_path)
