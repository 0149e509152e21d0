"""Reading errors: what led to them, what is in them, and the names of their classes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tarry.support.guards import chain, drop_tracebacks, everything_in, name_of, text_of


def errors_linked(links: list[tuple[bool, int, int, bool]]) -> list[BaseException]:
    """Return errors, groups of those before them among them, each with a cause, a context, or both."""
    made: list[BaseException] = []
    for index, (is_group, *_) in enumerate(links):
        inner = [error for error in made if isinstance(error, Exception)]
        made.append(ExceptionGroup("several", inner) if is_group and inner else ValueError(index))
    for error, (_, cause, context, suppresses) in zip(made, links, strict=True):
        error.__cause__ = dict(enumerate(made)).get(cause)
        error.__context__ = dict(enumerate(made)).get(context)
        error.__suppress_context__ = suppresses
    return made


def shown_origin(error: BaseException) -> BaseException | None:
    if error.__cause__ is None and not error.__suppress_context__:
        return error.__context__
    return error.__cause__


def nearest_first(error: BaseException, with_suppressed: bool) -> list[BaseException]:
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        if (link := todo.pop(0)) is not None and not any(link is each for each in found):
            found.append(link)
            todo += getattr(link, "exceptions", ())
            todo += [link.__cause__, link.__context__] if with_suppressed else [shown_origin(link)]
    return found


index = st.integers(-1, 5)  # most often of an error; also of none


@given(st.lists(st.tuples(st.booleans(), index, index, st.booleans()), min_size=1, max_size=6))
def test_the_errors_that_led_to_one_and_those_in_it_are_each_read_once_nearest_first(links: Any) -> None:
    # SPEC D2
    error = errors_linked(links)[-1]
    linked = [error]
    while (origin := shown_origin(linked[-1])) is not None and not any(origin is each for each in linked):
        linked.append(origin)
    for read, expected in (
        (list(chain(error)), linked),
        (everything_in(error), nearest_first(error, with_suppressed=False)),
        (everything_in(error, with_suppressed=True), nearest_first(error, with_suppressed=True)),
    ):
        assert [*map(id, read)] == [*map(id, expected)]


def test_at_most_ten_thousand_errors_are_read() -> None:
    last = first = ValueError()
    for _ in range(10_000):
        last.__context__ = last = ValueError()
    assert len(list(chain(first))) == len(everything_in(first)) == 10_000


def test_the_tracebacks_of_an_error_and_of_those_that_led_to_it_are_dropped() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("last") from None
    except ValueError as raised:
        error = raised
    assert error.__context__ is not None
    assert None not in (error.__traceback__, error.__context__.__traceback__)
    drop_tracebacks(error)
    assert (error.__traceback__, error.__context__.__traceback__) == (None, None)


class HasNoText:
    def __str__(self) -> str:
        raise KeyError


def test_names_and_texts_are_cut_and_those_that_cannot_be_read_are_replaced() -> None:  # SPEC A2
    assert (name_of(KeyError), name_of(HasNoText)) == ("KeyError", f"{__name__}.HasNoText")
    assert name_of(type("Long" * 99, (), {"__module__": "m"})) == f"m.{'Long' * 99}"[:200]
    assert name_of(type("Odd", (), {"__module__": 7})) == "?.Odd"
    assert (text_of(12345, 5), text_of(12345, 4), text_of(HasNoText(), 9)) == (
        "12345", "1234", "<KeyError while describing it>",
    )  # fmt: skip
