"""Values of references that are made on first use, and noted when they are used."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.model import TemplateError


class LazyValues(Mapping[str, Any]):
    """Values made on first use. A value that needs itself raises `TemplateError`.

    ``watch`` is called with the name of each value that is used.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]], watch: Callable[[str], None] | None = None) -> None:
        self._makers = makers
        self._watch = watch
        self._made: dict[str, Any] = {}
        self._open: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        if self._watch is not None:
            self._watch(key)
        if key not in self._made:
            if key in self._open:
                cycle = [*self._open][list(self._open).index(key) :]
                raise TemplateError(
                    f"the names of {', '.join(cycle)} refer to each other: give one of them a plain name"
                )
            self._open[key] = None
            try:
                self._made[key] = self._makers[key]()
            finally:
                del self._open[key]
        return self._made[key]

    def unwatched(self) -> "LazyValues":
        """Return the same values, whose use is not watched."""
        found = copy(self)
        found._watch = None
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def unwatched(scope: Intrinsics) -> Intrinsics:
    """Return a scope for values that do not matter to what is played."""
    refs = scope.refs.unwatched() if isinstance(scope.refs, LazyValues) else scope.refs
    found = Intrinsics(refs, scope.attributes, scope.mappings, scope.conditions, scope.pending)
    found.fill = scope.fill
    return found
