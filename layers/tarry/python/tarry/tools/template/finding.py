"""Finding the template of a project, and the project of a template."""

from pathlib import Path

from tarry.failed.usage import UsageError

SOURCES = ("template.yaml", "template.yml", "template.json")
BUILD = Path(".aws-sam", "build")
CDK_APP = "cdk.json"
CDK_OUTPUT = "cdk.out"


def find_template(directory: Path = Path()) -> Path:
    """Return the template of a project: a source, or else the output of ``sam build`` or of ``cdk synth``.

    Raises:
        UsageError: there is none, or there are several stacks in the output of ``cdk synth``.
    """
    for name in (*SOURCES, BUILD / SOURCES[0]):
        if (directory / name).is_file():
            return directory / name
    stacks = _stacks(directory / CDK_OUTPUT)
    if len(stacks) > 1:
        raise UsageError(f"{CDK_OUTPUT} has several stacks: name one with --template: {', '.join(map(str, stacks))}")
    if not stacks:
        looked_for = ", ".join(map(str, (*SOURCES, BUILD / SOURCES[0], f"{CDK_OUTPUT}/*.template.json")))
        remedy = "name one with --template FILE"
        if (directory / CDK_APP).is_file():
            remedy = f"{CDK_APP} is here, so make one with cdk synth"
        raise UsageError(f"there is no template here ({looked_for}): {remedy}")
    return stacks[0]


def refuse_template(function: str) -> None:
    """Raise `UsageError` for the path of a template in the place of a function, whose name has no dot."""
    if function.endswith((".yaml", ".yml", ".json")):
        raise UsageError(f"{function} is not a function: for a template, give --template {function}")


def project_of(template: Path) -> Path:
    """Return the directory of the project; a template may be in the output of ``sam build`` or ``cdk synth``."""
    directory = template.parent
    for each in (directory, *directory.parents):
        if each.name == CDK_OUTPUT:
            return each.parent
    return directory.parents[1] if is_built(template) else directory


def is_built(template: Path) -> bool:
    """Whether a template is the output of ``sam build``."""
    return template.parent.parts[-2:] == BUILD.parts


def _stacks(output: Path) -> list[Path]:
    """Return the templates of a CDK app; if there are several, only those that consume a queue or stream."""
    found = sorted(each for each in output.rglob("*.template.json") if ".nested." not in each.name)
    consuming = [each for each in found if "AWS::Lambda::EventSourceMapping" in each.read_text(encoding="utf-8")]
    return (consuming or found) if len(found) > 1 else found
