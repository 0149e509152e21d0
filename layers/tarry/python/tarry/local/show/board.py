"""The states of all messages while a cloud runs, told by its history. Made for days: what has settled is forgotten."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from itertools import islice

from tarry.local.show.story import FINAL, ORDINARY, Story, story_of
from tarry.outcome import State
from tarry.simulator.history import Event
from tarry.testing.listening import FIELDS
from tarry.testing.story import Stories, Transition
from tarry.testing.story import Story as Told

MOST_SETTLED = 500
"""Stories of settled messages that are kept."""
MOST_RECENT = 200
MOST_STEPS = 200
"""Of one story: a message that fails every few seconds for four days has more to tell than anybody reads."""


class Board:
    """All stories. ``on_step`` is told of each as it goes on; ``consumed`` are the queues that feed a function.

    ``forgetful``: what has settled is kept for a while only, and then merely counted.
    """

    def __init__(
        self, consumed: Collection[str], on_step: Callable[[Story], None] = lambda story: None, *, forgetful: bool
    ) -> None:
        self.ended: Counter[str] = Counter()
        """How many messages have ended in which state."""
        self.number: int | None = None
        """The place in the event file of what is sent now."""
        self.numbers: dict[str, int] = {}
        self._consumed = consumed
        self._on_step = on_step
        self._forgetful = forgetful
        self._stories = Stories(on_step=self._stepped, by_deliveries=True)
        self._recent: OrderedDict[str, Told] = OrderedDict()
        self._troubled: OrderedDict[str, Told] = OrderedDict()
        self._settled: deque[Told] = deque()
        self._counted: dict[str, str] = {}

    def take(self, event: Event) -> None:
        """Something has happened; a line of tarry's log that tells of a message is as good as the history's own."""
        fields = event.fields.get("fields") if event.what == "logged" else None
        if not fields:
            self._stories.take(event)
        elif fields.get("state") in State.__members__ and fields.get("delivery_id"):
            said = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
            self._stories.take(Event(event.at, "said", said))

    @property
    def stories(self) -> list[Story]:
        """Those that are not forgotten: by their places in the event file, then as they came."""
        stories = [self._shown(told) for told in self._stories.by_id.values() if told.transitions]
        return sorted(stories, key=lambda story: story.number or len(self.numbers) + 1)

    @property
    def is_settled(self) -> bool:
        return all(story.is_settled or story.lost for story in self.stories)

    def is_hopeless(self, until: float) -> bool:
        """Whether nothing more can happen before ``until``: all that has not settled waits longer."""
        waiting = (story for story in self.stories if not (story.is_settled or story.lost))
        return all(story.due is not None and story.due > until for story in waiting)

    def find(self, message_id: str) -> Story | None:
        """By the stable id, or that of any delivery."""
        told = self._stories.find(message_id)
        return self._shown(told) if told is not None and told.transitions else None

    def latest(self, most: int) -> list[Story]:
        """Those that went on last, the last first. Half of the places are kept for what did not simply go well."""
        troubled = list(islice(reversed(self._troubled.values()), most // 2))
        others = (told for told in reversed(self._recent.values()) if told not in troubled)
        shown = [*troubled, *islice(others, most - len(troubled))]
        shown.sort(key=lambda told: told.transitions[-1].at, reverse=True)
        return [self._shown(told) for told in shown]

    def _shown(self, told: Told) -> Story:
        return story_of(told.id, told.transitions, self.numbers.get(told.id), self._consumed)

    def _stepped(self, told: Told) -> None:
        last = told.transitions[-1]
        if self.number is not None and len(told.transitions) == 1:
            self.numbers[told.id] = self.number
        self._count(told, last)
        _put(self._recent, told)
        if last.state in ORDINARY:
            self._troubled.pop(told.id, None)
        else:
            _put(self._troubled, told)
        if self._forgetful:
            self._forget(told, last)
        if told.id not in self.numbers or len(told.transitions) > 1:
            self._on_step(self._shown(told))

    def _count(self, told: Told, last: Transition) -> None:
        """Each end of a message once: tarry's word on it may come after what has already been concluded."""
        if last.state in FINAL:
            state = self._shown(told).state
            if told.id in self._counted:
                self.ended[self._counted[told.id]] -= 1
            self._counted[told.id] = state
            self.ended[state] += 1
        else:
            self._counted.pop(told.id, None)  # redriven: it ends a second time

    def _forget(self, told: Told, last: Transition) -> None:
        if len(told.transitions) > MOST_STEPS:
            del told.transitions[1 : MOST_STEPS // 2]
        if last.state in FINAL:
            self._settled.append(told)
        if len(self._settled) > MOST_SETTLED:
            oldest = self._settled.popleft()
            if oldest.transitions[-1].state in FINAL and oldest not in self._settled:
                self._stories.forget(oldest)
                for known in (self._recent, self._troubled, self._counted, self.numbers):
                    known.pop(oldest.id, None)


def _put(kept: OrderedDict[str, Told], told: Told) -> None:
    kept[told.id] = told
    kept.move_to_end(told.id)
    if len(kept) > MOST_RECENT:
        kept.popitem(last=False)
