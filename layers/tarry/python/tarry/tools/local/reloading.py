"""Changes while `tarry local --watch` runs: of the code of functions, and of the template."""

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tarry.failed.usage import UsageError
from tarry.tools.check.finding import Finding
from tarry.tools.check.start import findings_at_start
from tarry.tools.local.cloud import LocalCloud
from tarry.tools.local.functions.code import FunctionCode
from tarry.tools.local.plan import RunPlan, RunSettings, make_plan
from tarry.tools.simulator.sqs import Depth
from tarry.tools.template import TemplateError, TemplateFunction, TemplateQueue
from tarry.tools.template.model import with_foreign_queues

SCAN_SECONDS = 0.5
IGNORED = frozenset({"__pycache__", "node_modules"})

Stamps = dict[str, tuple[int, int]]
"""The modification time and size of each file; the size shows a second change within one clock tick."""


def stamps_of(path: Path) -> Stamps:
    """Return the stamps of a file, or of all files in a directory by relative path, without hidden and compiled ones.

    A path that does not exist has none.
    """
    found: Stamps = {}
    files = [] if path.is_dir() else [path]
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [each for each in folders if each not in IGNORED and not each.startswith(".")]
        files += [Path(folder, each) for each in names if not each.startswith(".") and not each.endswith((".pyc", "~"))]
    for file in files:
        with suppress(OSError):  # just removed, or being rewritten
            stat = file.stat()
            found[file.name if file == path else str(file.relative_to(path))] = stat.st_mtime_ns, stat.st_size
    return found


def watched(plan: RunPlan, settings: RunSettings) -> Iterator[Path]:
    """Yield the template, and the directories of the functions, those too that only other code invokes."""
    yield plan.template.path
    for function in () if settings.queues_only else plan.template.functions.values():
        yield from _directories(function)
        if function.other_code is not None:
            yield function.other_code  # the source of a build


def _directories(function: TemplateFunction) -> list[Path]:
    """Return the directories that a function is imported from: its code and its layers."""
    return [*([function.code] if function.code is not None else []), *function.layers]


class Reloader:
    """The changes of one cloud, from the state of the files before the cloud was started.

    Files are polled: unlike notifications, that works on every system and on network and container mounts, and
    functions have few files.
    """

    def __init__(self, plan: RunPlan, settings: RunSettings) -> None:
        self._known: dict[Path, Stamps] = {}
        self._watch(plan, settings)
        self._findings = _findings(plan)

    async def run(self, cloud: LocalCloud) -> None:
        """Reload what has changed, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            if found := await loop.run_in_executor(None, self._changes):
                await self._reload(cloud, found)

    def _watch(self, plan: RunPlan, settings: RunSettings) -> None:
        """Watch the files of a plan too, those that are new from their current state on."""
        for path in watched(plan, settings):
            if path not in self._known:
                self._known[path] = stamps_of(path)

    def _changes(self) -> dict[Path, list[str]]:
        """Return the changed files of each path."""
        found = {}
        for path, before in list(self._known.items()):
            now = stamps_of(path)
            if now and now != before:  # without a file it is being replaced, as by a build
                found[path] = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
                self._known[path] = now
        return found

    async def _reload(self, cloud: LocalCloud, files: Mapping[Path, list[str]]) -> None:
        loaded: Collection[str] = ()
        template = cloud.plan.template.path

        def changes(function: TemplateFunction) -> list[str]:
            places = ((path, file) for path in _directories(function) for file in files.get(path, ()))
            return [file for path, file in places if path / file != template]

        sources = (each.other_code for each in cloud.plan.template.functions.values() if each.other_code in files)
        places = (path / file for path in sources if path is not None for file in files[path])
        edited = next((place for place in places if place != template), None)
        if template in files or edited:
            loaded = await self._reload_template(cloud, None if template in files else edited)
        elif any(changes(function) for function in _not_started(cloud)):
            loaded = await _start_again(cloud)
        names = {name: changes(host.function) for name, host in cloud.functions.items() if name not in loaded}
        await asyncio.gather(*(_reload_code(cloud, name, found) for name, found in names.items() if found))
        await self._warn(cloud)

    async def _warn(self, cloud: LocalCloud) -> None:
        """Show the warnings of the start that the changes have added."""
        loop = asyncio.get_running_loop()
        before, self._findings = self._findings, await loop.run_in_executor(None, _findings, cloud.plan)
        for text, finding in self._findings.items():
            if text not in before:
                cloud.note("\n  ".join(filter(None, (f"Warning: {text}", finding.snippet))))

    async def _reload_template(self, cloud: LocalCloud, edited: Path | None = None) -> Collection[str]:
        """Run the changed template; return the names of the functions that were loaded.

        If it cannot be used, or one of its functions cannot be run here, keep the former template. ``edited``: the file
        that has changed instead, of the source of a function that runs from its build.
        """
        path, notes = cloud.plan.template.path, list[str]()
        name = str(edited or path.name)
        try:
            loop = asyncio.get_running_loop()
            plan = await loop.run_in_executor(None, make_plan, cloud.settings, notes.append)
            queues = with_foreign_queues(plan.template)
            urls = await cloud.sqs.check(queues.values())
            notes += await cloud.sqs.make_resources(plan.template, urls)
            codes = cloud.codes_of(plan, notes.append)
        except (UsageError, TemplateError) as error:
            cloud.note(f"{name} has changed, but the former template stays in use: {error}", "red")
            return ()
        before, cloud.plan = cloud.plan, plan
        queues_before = with_foreign_queues(before.template)
        notes += await cloud.sqs.update(queues.values())
        notes += _kept_queues(queues_before, queues, cloud.sqs.depths())
        events_before, events = ({each.logical_id: each for each in of.all_mappings} for of in (before, plan))
        summary = "; ".join(
            [
                *_differences("queue", queues_before, queues),
                *_differences("function", {name: host.wanted for name, host in cloud.functions.items()}, codes),
                *_differences("event", events_before, events),
            ]
        )
        same = "the build still runs" if edited else "its queues, functions and events are the same"
        cloud.note(f"{name} has changed: {summary or same}.", "cyan")
        for name, function in plan.template.functions.items():
            known = before.template.functions.get(name)
            if known is not None and known.build_reason and not function.build_reason:
                notes.append(f"{function.logical_id} runs from {function.code}, which is newer than its build.")
        for text in notes:
            cloud.note(text)
        cloud.history.record("reloaded", queues={mapping.queue for mapping in plan.all_mappings})
        self._watch(plan, cloud.settings)
        return await _run_plan(cloud, codes)


def _not_started(cloud: LocalCloud) -> list[TemplateFunction]:
    """Return the consumers that did not start: packages are not installed, or a variable cannot be resolved."""
    return [function for function in cloud.plan.functions if function.name not in cloud.functions]


async def _start_again(cloud: LocalCloud) -> Collection[str]:
    """Start the consumers that did not start; return the names of the functions that were loaded."""
    codes = {name: host.wanted for name, host in cloud.functions.items()}
    for function in _not_started(cloud):
        with suppress(UsageError, TemplateError):
            codes[function.name] = cloud.code_of(function)
    loaded = await _run_plan(cloud, codes)
    cloud.history.record("reloaded", queues=cloud.consumed)
    for name in loaded:
        if cloud.functions[name].limit is None:
            cloud.note(f"{name} can be imported now, and runs.", "cyan")
    return loaded


async def _reload_code(cloud: LocalCloud, name: str, files: list[str]) -> None:
    host = cloud.functions[name]
    was_broken = host.limit is not None
    if await _load(cloud, name):
        more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
        again = "The handler can be imported again; the" if was_broken else "The"
        cloud.note(f"{name}: {files[0]}{more} changed. {again} new code is running.", "cyan")


async def _load(cloud: LocalCloud, name: str, code: FunctionCode | None = None) -> bool:
    """Load the code of a function; return whether it could be imported, and show why not."""
    host = cloud.functions[name]
    try:
        await host.reload(code)
    except UsageError as error:
        cloud.show_broken(name, error)
        return False
    return True


async def _run_plan(cloud: LocalCloud, codes: Mapping[str, FunctionCode]) -> Collection[str]:
    """Run these functions, and the mappings of the cloud's plan; return the names of the functions that were loaded.

    A mapping or function that ends still handles the messages that it has received.
    """
    plan = cloud.plan
    wanted = {
        mapping.logical_id: cloud.mapping_settings(mapping, plan)
        for mapping in plan.all_mappings
        if mapping.function in codes
    }
    for logical_id, mapping in list(cloud.mappings.items()):
        if wanted.get(logical_id) != mapping.settings:
            mapping.stop()
            del cloud.mappings[logical_id]
    for name in [name for name in cloud.functions if name not in codes]:
        cloud.remove(name)
    running = {name: host.wanted for name, host in cloud.functions.items()}
    loaded = [name for name, code in codes.items() if running.get(name) != code]
    cloud.functions |= {name: cloud.host(code) for name, code in codes.items() if name not in running}
    await asyncio.gather(*(_load(cloud, name, codes[name]) for name in loaded))
    for logical_id, settings in wanted.items():
        if logical_id not in cloud.mappings:
            cloud.connect(logical_id, settings)
    return loaded


def _findings(plan: RunPlan) -> dict[str, Finding]:
    """Return the findings by their texts."""
    return {finding.text: finding for finding in findings_at_start(plan.template, plan.all_mappings)}


def _differences(kind: str, before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    """Yield what was added, changed and removed, each in a few words."""
    for verb, names in (
        ("added", [name for name in after if name not in before]),
        ("changed", [name for name in after if name in before and before[name] != after[name]]),
        ("removed", [name for name in before if name not in after]),
    ):
        if names:
            yield f"{kind}{'s'[: len(names) != 1]} {', '.join(names)} {verb}"


def _kept_queues(
    before: Mapping[str, TemplateQueue], after: Mapping[str, TemplateQueue], depths: Mapping[str, Depth]
) -> Iterator[str]:
    """Yield a note for each queue that the template no longer has: it stays, so that no message is lost."""
    names = {queue.logical_id: name for name, queue in after.items() if queue.logical_id}
    for name, queue in before.items():
        if name in after:
            continue
        count = sum(depths[name][:3]) if name in depths else 0
        messages = f"with {count:,} message{'s'[: count != 1]}" if count else "empty"
        renamed = names.get(queue.logical_id or "")
        if renamed:
            text = f"Queue {name} cannot become {renamed} while tarry local runs: {renamed} is a new queue, and {name}"
        else:
            text = f"Queue {name} is no longer in the template. It"
        yield f"{text} stays until tarry local ends, {messages}."
