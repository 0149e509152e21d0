"""The findings that `tarry local` reports at its start: it reads the code of the functions and applies the rules."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from tarry.support.values import queue_arn
from tarry.tools.check.builds import modules_in_build, recipe_of
from tarry.tools.check.consumer_code import ConsumerCode
from tarry.tools.check.consumers import consumer_of
from tarry.tools.check.finding import Finding
from tarry.tools.check.rules.missing_modules import PARSER, missing_in_inline_code, missing_modules, modules_left_out
from tarry.tools.check.rules.missing_permissions import missing_permissions, missing_table_permissions
from tarry.tools.check.rules.python_version import other_python
from tarry.tools.check.rules.receive_counts import receive_counts
from tarry.tools.check.rules.unfit_decorators import unfit_decorators
from tarry.tools.check.runtimes import Version, is_brought, text_of, version_of
from tarry.tools.check.sources import OutsideImport, Sources
from tarry.tools.check.uses import Uses, uses_of
from tarry.tools.template import Template, TemplateFunction, TemplateMapping
from tarry.tools.template.document import resource_lines
from tarry.tools.template.unpacking import is_unpacked


def findings_at_start(
    template: Template, mappings: Iterable[TemplateMapping], here: Version = sys.version_info[:2]
) -> list[Finding]:
    """Return what makes the functions of these mappings behave differently at AWS, as far as it is certain.

    Args:
        template: The template.
        mappings: The mappings that run.
        here: The version of Python that runs the functions.
    """
    return list(TemplateCode(template, list(mappings)).findings(here))


class _Missing(NamedTuple):
    """The imports that a build lacks, and the place of the model for which it lacks Powertools' parser."""

    imports: tuple[OutsideImport, ...] = ()
    parser: tuple[Path, int] | None = None


class TemplateCode:
    """The functions of some mappings: their code, read once, and the findings about it."""

    def __init__(self, template: Template, mappings: list[TemplateMapping]) -> None:
        self._template = template
        self._mappings = mappings
        names = dict.fromkeys(mapping.function for mapping in mappings)
        self._functions = [template.functions[name] for name in names if name in template.functions]
        self._sources: dict[Path, Sources] = {}

    def findings(self, here: Version) -> Iterator[Finding]:
        """Yield all findings. ``here`` is the version of Python that runs the functions."""
        versions = {each.logical_id: version_of(each.runtime) for each in self._functions}
        yield from other_python({name: version for name, version in versions.items() if version}, here)
        yield from self.at_any_python()

    def at_any_python(self) -> Iterator[Finding]:
        """Yield the findings that do not depend on the version of Python here."""
        yield from self._modules()
        yield from self._left_out()
        yield from self._permissions()
        yield from self._consumers()

    def _modules(self) -> Iterator[Finding]:
        groups: dict[tuple[Path, Version, _Missing], list[str]] = {}
        for function in self._functions:
            version = version_of(function.runtime)
            if function.code is not None and function.handler and version is not None:
                with suppress(OSError):
                    missing = self._missing(function, version)
                    groups.setdefault((function.code, version, missing), []).append(function.logical_id)
        for (code, version, missing), names in groups.items():
            if is_unpacked(code):
                yield from missing_in_inline_code(names, missing.imports, self._template.path, self._line_of(names[0]))
            elif any(missing):
                from tarry.tools.check.distributions import distribution_with

                yield from missing_modules(names, missing.imports, version, code, distribution_with, missing.parser)

    def _line_of(self, name: str) -> int:
        return resource_lines(self._template.path).get(name, 1)

    def _missing(self, function: TemplateFunction, version: Version) -> _Missing:
        """Return what is certainly missing in the build of a function.

        Raises:
            OSError: a file or directory cannot be read.
        """
        sources, module = self.code(function)
        needed = [each for each in sources.outside_imports(module) if not is_brought(each.module, version)]
        consumer = consumer_of(sources, module, (function.handler or "").rpartition(".")[2])
        model = consumer.model if consumer is not None else None
        if not (needed or model):
            return _Missing()
        contained = modules_in_build(function, self._template.path, f"python{text_of(version)}")
        if contained is None or sources.changes_path(module):
            return _Missing()
        imports = tuple(each for each in needed if each.module not in contained)
        lacks_parser = any(each not in contained and not sources.has(each) for each in PARSER)
        return _Missing(imports, model if lacks_parser else None)

    def _left_out(self) -> Iterator[Finding]:
        """Yield the functions whose Makefile does not copy all of their own files that they load."""
        for function in self._functions:
            if function.code is None or version_of(function.runtime) is None:
                continue
            with suppress(OSError):
                sources, module = self.code(function)
                if (recipe := recipe_of(function)) is not None:
                    loaded = (each.path.relative_to(function.code) for each in sources.loaded_by(module))
                    left_out = dict.fromkeys(each for each in loaded if each.parts[0] not in recipe.copied)
                    yield from modules_left_out(function.logical_id, function.code, list(left_out))

    def _permissions(self) -> Iterator[Finding]:
        path = self._template.path
        lines = cache(partial(resource_lines, path))
        checked = set[str]()
        for mapping in self._mappings:
            function = self._template.functions.get(mapping.function)
            if function is None or function.code is None or function.permissions is None:
                continue
            if (consumer := self.consumer(function)) is None:
                continue
            uses, place = self._uses(function), partial(_place, path, lines, function.logical_id)
            if uses.has_idempotency_table and function.logical_id not in checked:
                checked.add(function.logical_id)
                yield from missing_table_permissions(function, place)
            queue = self._template.queues.get(mapping.queue)
            dead_letters = queue_arn(queue.dead_letter_arn) if queue and queue.dead_letter_arn else None
            yield from missing_permissions(
                function,
                queue_arn(mapping.queue_arn),
                dead_letters,
                consumer.steps_for(mapping.queue),
                self._template.queues,
                place,
                defers=uses.defers,
            )

    def _uses(self, function: TemplateFunction) -> Uses:
        sources, module = self.code(function)
        with suppress(OSError):
            return uses_of(sources.loaded_by(module))
        return Uses(defers=False, has_idempotency_table=False)

    def _consumers(self) -> Iterator[Finding]:
        lines = cache(partial(resource_lines, self._template.path))
        consumers = {each.name: self.consumer(each) for each in self._functions if each.code is not None}
        for name, consumer in consumers.items():
            if consumer is not None:
                yield from unfit_decorators(self._template.functions[name].logical_id, consumer.above)
        for mapping in self._mappings:
            consumer, queue = consumers.get(mapping.function), self._template.queues.get(mapping.queue)
            is_known = queue is not None and not self._template.checked.is_unknown(f"{queue.logical_id}.RedrivePolicy")
            if consumer is not None and queue is not None and is_known:
                function = self._template.functions[mapping.function].logical_id
                place = partial(_place, self._template.path, lines, queue.logical_id or "")
                yield from receive_counts(function, consumer, queue, mapping.batch_size, place)

    def consumer(self, function: TemplateFunction) -> ConsumerCode | None:
        """Return the consumer of a function whose code is here; None if it is not certain that it is one."""
        sources, module = self.code(function)
        with suppress(OSError):
            return consumer_of(sources, module, (function.handler or "").rpartition(".")[2])
        return None

    def code(self, function: TemplateFunction) -> tuple[Sources, str]:
        """Return the files of a function, and the module of its handler."""
        assert function.code is not None
        if function.code not in self._sources:
            self._sources[function.code] = Sources(function.code)
        return self._sources[function.code], (function.handler or "").rpartition(".")[0].replace("/", ".")


def _place(path: Path, lines: Callable[[], Mapping[str, int]], logical_id: str) -> tuple[Path, int]:
    return path, lines().get(logical_id, 1)
