"""The code of functions: modules that their builds lack, their Python version, decorators and sends."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tarry.sqs.refusals import MAX_ATTRIBUTES
from tarry.tools.check.consumers import Decorator
from tarry.tools.check.facts import Facts, Version, is_removed, text_of, version_of
from tarry.tools.check.finding import At, Finding, listed, setting, subject
from tarry.tools.check.sources import OutsideImport
from tarry.tools.template import TemplateFunction

PARSER = frozenset({"aws_lambda_powertools", "pydantic"})
"""The modules that tarry imports for a consumer with a model."""
PARSER_REQUIREMENT = "aws-lambda-powertools[parser]"


def missing_modules(
    functions: Sequence[str],
    missing: Sequence[OutsideImport],
    version: Version,
    code: Path,
    distribution_of: Callable[[str], str | None],
    model: tuple[Path, int] | None = None,
) -> Iterator[Finding]:
    """Describe the modules that functions with the same code import and lack; one finding for each kind of remedy.

    ``model`` is the file and line of the model of their consumer, if their builds lack the parser that it needs.
    """
    requirements = code / "requirements.txt"
    build, layers = ("its build does", "its Layers") if len(functions) == 1 else ("their builds do", "their Layers")
    if model is not None:
        missing = [each for each in missing if each.module not in PARSER]  # the parser brings them
        text = (
            f"{subject(functions, 'has', 'have')} a model ({model[0]}:{model[1]}), for which tarry needs Powertools' "
            f"parser, which {build} not contain. Add {PARSER_REQUIREMENT} to {requirements}, or the Powertools layer "
            f"to {layers}."
        )
        yield Finding("W9001", tuple(functions), text, file=model[0], line=model[1])
    distributions = {each: distribution_of(each.module) for each in missing if each.module != "tarry"}
    removed = [each for each in missing if is_removed(each.module, version)]
    others = [each for each in missing if each not in removed]
    installed = [each for each in others if distributions.get(each)]
    unknown = [each for each in others if each in distributions and each not in installed]
    own = [each for each in others if each.module == "tarry"]
    names = listed(dict.fromkeys(distributions[each] or "" for each in installed))
    if len(unknown) == 1:
        move = f"Move it into {code}, or add a package that contains it to {requirements}."
    else:
        move = f"Move them into {code}, or add packages that contain them to {requirements}."
    for imports, lack, remedy in (
        (removed, f"Python {text_of(version)} no longer has", "Replace it."),
        (installed, f"{build} not contain", f"Add {names} to {requirements}."),
        (unknown, f"{build} not contain", move),
        (own, f"{build} not contain", f"Add the tarry layer to {layers}."),
    ):
        if imports:
            places = listed(f"{each.module} ({each.path}:{each.line})" for each in imports)
            text = f"{subject(functions, 'imports', 'import')} {places}, which {lack}. {remedy}"
            yield Finding("W9001", tuple(functions), text, file=imports[0].path, line=imports[0].line)


def missing_in_inline_code(functions: Sequence[str], missing: Sequence[OutsideImport]) -> Iterator[Finding]:
    """Describe the modules that the code in a template, or in a zip file, imports and lacks."""
    if missing:
        modules = listed(each.module for each in missing)
        layers = "its Layers" if len(functions) == 1 else "their Layers"
        text = (
            f"{subject(functions, 'imports', 'import')} {modules}, which neither the Python of Lambda nor {layers} "
            f"contain. Add a layer that does to {layers}, or move the code to a directory with a requirements.txt."
        )
        yield Finding("W9001", tuple(functions), text, at=At(functions[0]))


def modules_left_out(function: str, code: Path, files: Sequence[Path]) -> Iterator[Finding]:
    """Describe the files below ``code`` that a function loads and that its Makefile does not copy into the build."""
    if files:
        names = listed(str(code / each) for each in files)
        makefile = code / "Makefile"
        text = (
            f"{function} loads {names}, which {makefile} does not copy into its build. To copy the whole directory: "
            'cp -R . "$(ARTIFACTS_DIR)/"'
        )
        yield Finding("W9001", (function,), text, file=makefile, line=1)


OLDEST: Version = (3, 11)
"""The oldest version that tarry runs under."""


def other_python(versions: Mapping[str, Version], here: Version) -> Iterator[Finding]:
    """Find the functions whose ``Runtime`` has another version than runs them here; one finding for all of them."""
    other = {name: version for name, version in versions.items() if version != here}
    if not other:
        return
    by_version = {wanted: [name for name in other if other[name] == wanted] for wanted in sorted({*other.values()})}
    who = "Functions run" if len(other) == len(versions) else subject(list(other), "runs", "run")
    if len(by_version) == 1:
        [version] = by_version
        wanted = text_of(version)
        named, remedy = f"python{wanted}", f"To run them under {wanted} here too, install tarry under Python {wanted}."
        if version < OLDEST:
            remedy = f"tarry needs Python {text_of(OLDEST)} or later: update the Runtime."
    else:
        named = listed(f"python{text_of(each)} ({', '.join(names)})" for each, names in by_version.items())
        remedy = "To run a function under its own version, install tarry under that version."
    yield Finding(
        "W9002", tuple(other), f"{who} under Python {text_of(here)} here; the template says {named}. {remedy}"
    )


def old_runtime(function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find a consumer of tarry with a version of Python that tarry does not support."""
    version = version_of(function.runtime)
    if version is None or version >= OLDEST or facts.consumer(function) is None:
        return
    text = (
        f"{function.logical_id} has the Runtime {function.runtime}, and tarry needs Python {text_of(OLDEST)} or later: "
        "the function cannot import it. Set:"
    )
    at = facts.at(function, "Runtime")
    yield setting("E9032", (function.logical_id,), text, at, "python3.13", is_safe=False)


_ON_A_FUNCTION = "Put @idempotent_function on a function that the handler calls."
UNFIT = {
    "idempotent_function": (
        "it takes its data as a keyword argument, which Lambda does not pass, so every invocation fails, and SQS moves "
        f"all messages to the dead-letter queue without a failure record. {_ON_A_FUNCTION}"
    ),
    "idempotent": f"it accepts only functions, so the import fails. {_ON_A_FUNCTION}",
    "event_source": (
        "it accepts only functions, so the import fails. Call the consumer from a function, and decorate that."
    ),
}
"""The consequence and the remedy, by name."""


def unfit_decorators(function: str, above: Iterable[Decorator]) -> Iterator[Finding]:
    """Find the decorators above the consumer of a function that make it fail; ``function`` is its logical id."""
    for each in above:
        if each.name in UNFIT:
            text = f"@{each.name} is above the consumer of {function} ({each.path}:{each.line}): {UNFIT[each.name]}"
            yield Finding("W9005", (function,), text, file=each.path, line=each.line)


def no_room(facts: Facts) -> Iterator[Finding]:
    """Find sends with ten attributes, in the code of all functions, if one of them is a consumer of tarry."""
    if not any(map(facts.consumer, facts.functions.values())):
        return
    for function in facts.template.functions.values():
        for file in facts.files(function):
            for node, attributes in _wide_sends(file.tree):
                text = (
                    f"{function.logical_id} sends messages with {attributes} attributes, and SQS allows 10: a copy of "
                    "such a message has no place for the Tarry attribute, so its dead letter has no failure record. "
                    "Send at most 9; put the others into the body."
                )
                yield Finding("W9033", (function.logical_id,), text, file=file.path, line=node.lineno)


def _wide_sends(tree: ast.Module) -> Iterator[tuple[ast.Call, int]]:
    """Yield the places of sends with as many attributes as SQS allows, or more, and how many each has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "send_message":
            found = next((each.value for each in node.keywords if each.arg == "MessageAttributes"), None)
            if isinstance(found, ast.Dict) and None not in found.keys and len(found.keys) >= MAX_ATTRIBUTES:
                yield node, len(found.keys)
