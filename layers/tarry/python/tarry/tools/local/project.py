"""The template of a project, read as it is: values that only AWS knows get placeholders, and a note names them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tarry.tools.local.aws.client import DEFAULT_REGION
from tarry.tools.local.functions.code import Overrides
from tarry.tools.template import Template, TemplateFunction, read_template
from tarry.tools.template.dynamic import Stored
from tarry.tools.template.finding import SOURCES, find_template, read_samconfig
from tarry.tools.template.intrinsics import references
from tarry.tools.template.values import missing_values
from tarry.tools.testing.guarding import guards_in

Note = Callable[[str], None]
"""Print a hint for the developer."""


def template_path(given: Path | None, note: Note) -> Path:
    """Return the template: the given one, or that of the current directory. Raises `UsageError` if there is none."""
    if given is not None:
        return given
    path = find_template()
    if path != Path(SOURCES[0]):
        note(f"Using {path}.")
    return path


def read_project(
    path: Path,
    parameters: Mapping[str, str],
    region: str | None,
    config_env: str | None,
    note: Note,
    *,
    stored: Stored | None = None,
    strict: bool = False,
) -> Template:
    """Read a template with the values of the samconfig file, and note what is not as on AWS.

    Args:
        path: The template.
        parameters: Values with precedence over the samconfig file.
        region: The value of ``AWS::Region``; None for that of the samconfig file, or the default.
        config_env: The environment in the samconfig file; None for ``default``.
        note: Called with one line for each kind of difference.
        stored: Values of SSM parameters and secrets that the template does not make.
        strict: Refuse a parameter without a value; otherwise it gets a placeholder.

    Raises:
        UsageError: the samconfig file cannot be used.
        TemplateError: the template cannot be read, or a parameter has no value and ``strict`` is set.
    """
    config = read_samconfig(path, config_env)
    where = region or config.region or DEFAULT_REGION
    template = _with_builds(
        read_template(path, parameters, where, configured=config.parameters, stored=stored, lenient=True)
    )
    if strict and template.missing:
        raise missing_values(template.missing)
    _note_parameters(template, note)
    guards = [each.logical_id for each in guards_in(template)]
    if left_out := [each for each in template.not_played if each.partition(" ")[0] not in guards]:
        note(f"Not emulated here: {', '.join(left_out)}.")
    if template.left_out:
        note(f"Left out: {'; '.join(template.left_out)}.")
    return template


def _with_builds(template: Template) -> Template:
    """Return the template with the builds that are newer than their sources as the code of their functions."""
    functions = {
        name: replace(
            each,
            code=each.other_code,
            other_code=each.code,
            build_reason=f"its build ({each.build_method}) is newer than {each.code} and {template.path.name}",
        )
        for name, each in template.functions.items()
        if each.other_code and not each.build_reason
    }
    return replace(template, functions={**template.functions, **functions})


def _note_parameters(template: Template, note: Note) -> None:
    """Note what is played instead of the parameters without a value that matter here."""
    needed = {*template.placeholders, *template.defaulted.values()}
    options = " ".join(f"--parameter {name}=VALUE" for name in template.missing if name in needed)
    values = ", ".join(f"{name}={value}" for name, value in template.placeholders.items())
    places = ", ".join(f"{place} ({name})" for place, name in template.defaulted.items())
    defaults = f"AWS's defaults apply to properties whose parameter has no value: {places}." if places else ""
    if values:
        more = f" {defaults}".rstrip()
        note(f"Parameters without a value get a placeholder: {values}.{more} To set them: {options}")
    elif defaults:
        note(f"{defaults} To set them: {options}")


def note_builds(functions: Iterable[TemplateFunction], note: Note) -> None:
    """Note which functions run from their build, or lack one, and which builds are left out; each with the reason."""
    foreign: dict[str, None] = {}
    for function in functions:
        if function.build_reason:
            note(f"{function.logical_id} runs from {function.code}, because {function.build_reason}.")
        if function.lacking_packages:
            note(f"{function.logical_id}: {function.lacking_packages}.")
        foreign |= dict.fromkeys(function.foreign)
    for build in foreign:
        note(f"Build left out: {build}")


def with_placeholders(template: Template, functions: Collection[str], given: Overrides, note: Note) -> Template:
    """Return the template with a placeholder for each variable of the named functions that cannot be resolved.

    The placeholder is the name of the variable. Note which they are.
    """
    known = {*template.backing, *(queue.logical_id for queue in template.queues.values())}
    changed: dict[str, TemplateFunction] = {}
    reasons: dict[str, str] = {}
    for name in dict.fromkeys(functions):
        function = template.functions[name]
        found = {variable: why.partition(": ")[2] for variable, why in function.unresolved.items()}
        for variable, value in function.environment.items():
            for reference in references(value):
                if reference.name not in known:
                    found[variable] = f"tarry does not create {reference.name}"
        if made_up := {variable: why for variable, why in found.items() if variable not in given.of(function)}:
            environment = {**function.environment, **{variable: variable for variable in made_up}}
            changed[name] = replace(function, environment=environment, unresolved={})
            reasons |= {f"{variable} of {function.logical_id}": why for variable, why in made_up.items()}
    if reasons:
        listed = "; ".join(f"{variable} ({why})" for variable, why in reasons.items())
        note(f"Variables with their name as placeholder: {listed}. To set one: --env NAME=VALUE")
    return replace(template, functions={**template.functions, **changed})
