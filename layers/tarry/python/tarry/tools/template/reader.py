"""Reading a template into values."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.template.code import CodeFinder
from tarry.tools.template.document import load_document
from tarry.tools.template.dynamic import DynamicReferences, Stored
from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.lazy_values import LazyValues, unwatched
from tarry.tools.template.loops import expanded
from tarry.tools.template.model import ACCOUNT, STACK_NAME, Template, TemplateError
from tarry.tools.template.names import with_names
from tarry.tools.template.parameters import ParameterValues, parameter_values
from tarry.tools.template.pruning import pruned
from tarry.tools.template.reading.backing import BACKING_TYPES, read_backing
from tarry.tools.template.reading.checked import read_checked
from tarry.tools.template.reading.functions import read_functions
from tarry.tools.template.reading.mappings import read_mappings
from tarry.tools.template.reading.queues import read_queues
from tarry.tools.template.reading.values import Reading, Resources
from tarry.tools.template.samconfig import read_samconfig
from tarry.tools.template.translation import translate
from tarry.tools.template.unplayed import subscriptions_elsewhere, unplayed

PLAYED_TYPES = frozenset({"AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::Lambda::EventSourceMapping"})
"""The types of resources that must be resolvable."""


def read_template(
    path: Path | str,
    parameters: Mapping[str, str] | None = None,
    region: str = "us-east-1",
    *,
    configured: Mapping[str, str] | None = None,
    stored: Stored | None = None,
    lenient: bool = False,
    tolerant: bool = False,
) -> Template:
    """Read a SAM or CloudFormation template. Queues and functions without a name get their logical id as name.

    Only what queues, mappings and their functions need must be resolvable.

    Args:
        path: The template file.
        parameters: Values of parameters; the others have their defaults.
        region: The value of ``AWS::Region``.
        configured: Values with precedence over the defaults; None for those of the project's samconfig file, in its
            environment ``default``.
        stored: Values of SSM parameters and secrets that the template does not make, for dynamic references.
        lenient: Give a placeholder to each parameter without a value, and leave out mappings and properties of queues
            that cannot be resolved.
        tolerant: Leave out each resource that cannot be read, and accept cycles of dead-letter queues. Implies
            ``lenient``.

    Raises:
        TemplateError: the file or its samconfig file cannot be read, or a required intrinsic cannot be resolved.
    """
    path = Path(path)
    try:
        values = read_samconfig(path, None).parameters if configured is None else configured
        return _read(
            path, parameters or {}, region, values, stored or {}, lenient=lenient or tolerant, tolerant=tolerant
        )
    except UsageError as error:  # of the samconfig file
        raise TemplateError(str(error)) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a list where a map must be, and the like
        why = f"{type(error).__name__}: {error}"
        raise TemplateError(f"{path} is not a valid template ({why}): sam validate --lint names the line") from error


def _read(
    path: Path,
    parameters: Mapping[str, str],
    region: str,
    configured: Mapping[str, str],
    stored: Stored,
    *,
    lenient: bool,
    tolerant: bool,
) -> Template:
    written = load_document(path)
    values = parameter_values(written.get("Parameters") or {}, parameters, configured, placeholders=lenient)
    reading = Reading(lenient, values, tolerant)
    refs = _refs(values, region)
    whole = expanded(written, Intrinsics(LazyValues(refs, reading.use), {}, written.get("Mappings")))
    document, not_played = pruned(whole)
    translated, refused = translate(document, region, values.values, tolerant=tolerant)
    reading.left_out.extend(refused)
    resources, scope = _in_use(translated, refs, region, reading, frozenset(whole["Resources"]))
    scope.fill = DynamicReferences(resources, scope, stored).fill
    finder = CodeFinder(path, document, scope, reading.left_out.append)
    mappings = read_mappings(resources, scope, reading)
    consumers = {mapping.function for mapping in mappings}
    functions = read_functions(resources, scope, finder, consumers, reading)
    queues = read_queues(resources, scope, reading, mappings, functions)
    elsewhere = frozenset(subscriptions_elsewhere(resources, unwatched(scope)))
    backing = read_backing({name: each for name, each in resources.items() if name not in elsewhere}, scope, reading)
    checked = read_checked(written, translated["Resources"], unwatched(scope))
    return Template(
        path=path,
        region=region,
        queues=queues,
        functions=functions,
        mappings=mappings,
        backing=backing,
        placeholders={name: value for name, value in values.placeholders.items() if name in reading.used},
        defaulted=reading.defaulted,
        missing=values.missing,
        not_played=(*not_played, *unplayed(resources, elsewhere)),
        left_out=tuple(dict.fromkeys(reading.left_out)),
        checked=replace(checked, unknown=frozenset({*reading.unknown, *reading.defaulted})),
    )


def _in_use(
    translated: Mapping[str, Any],
    refs: Mapping[str, Callable[[], Any]],
    region: str,
    reading: Reading,
    declared: frozenset[str],
) -> tuple[Resources, Intrinsics]:
    """Return the resources whose condition holds, and the scope that resolves their properties."""
    conditions = translated.get("Conditions")
    early = Intrinsics(LazyValues(refs, reading.use), {}, translated.get("Mappings"), conditions)
    resources = {}
    for name, resource in translated["Resources"].items():
        matters = resource["Type"] in PLAYED_TYPES | BACKING_TYPES
        scope = early if matters else Intrinsics(LazyValues(refs), {}, early.mappings, conditions)
        condition = partial(scope.condition, resource.get("Condition"), name)
        if "Condition" not in resource or reading.attempt(condition, is_needed=resource["Type"] in PLAYED_TYPES):
            resources[name] = resource
    return resources, with_names(refs, resources, early, region, frozenset(resources) | declared, reading.use)


def _refs(values: ParameterValues, region: str) -> dict[str, Callable[[], Any]]:
    """Return functions that return the values of parameters, and of the pseudo parameters of CloudFormation."""
    pseudo_parameters = {
        "AWS::AccountId": ACCOUNT,
        "AWS::Region": region,
        "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::StackName": STACK_NAME,
        "AWS::StackId": f"arn:aws:cloudformation:{region}:{ACCOUNT}:stack/{STACK_NAME}/local",
    }
    found = {name: partial(str, value) for name, value in pseudo_parameters.items()}
    return {**values.refs(), "AWS::NotificationARNs": list, **found}
