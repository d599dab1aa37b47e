"""Filters that match a topic, found without a test of each: by a tree of levels, or by their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Final, Generic, TypeVar

from broker.core.topic_trie import FilterTrie

Item = TypeVar("Item")


class TopicIndex(Generic[Item]):
    """Items by the topic filters they are for; one item may have several."""

    def __init__(self, items: Iterable[tuple[Item, Iterable[tuple[str, ...]]]] = ()) -> None:
        """Args: each item with the levels of its filters."""
        self._held: dict[str, tuple[int, Item, tuple[tuple[str, ...], ...]]] = {}
        self._trie: FilterTrie[None] = FilterTrie()
        self.use((str(number), item, filters) for number, (item, filters) in enumerate(items))

    def use(self, items: Iterable[tuple[str, Item, Iterable[tuple[str, ...]]]]) -> None:
        """Replace the items; each has a name and the levels of its filters. A name that
        keeps its filters costs a comparison."""
        before = self._held
        self._held = {
            name: (number, item, tuple(filters))
            for number, (name, item, filters) in enumerate(items)
        }
        for name, (_, _, filters) in before.items():
            if (now := self._held.get(name)) is None or now[2] != filters:
                for levels in filters:
                    self._trie.remove(levels, name)
        for name, (_, _, filters) in self._held.items():
            if (old := before.get(name)) is None or old[2] != filters:
                for levels in filters:
                    self._trie.put(levels, name, None)

    def matching(self, topic: str) -> list[Item]:
        """The items for which a filter matches, each once, in the order they were given (MQTT 5.0, 4.7.1 and 4.7.2)."""
        names = {name for name, _ in self._trie.match(topic)}
        return [
            item for _, item, _ in sorted(map(self._held.__getitem__, names), key=itemgetter(0))
        ]


# Maximum number of shapes; beyond it a tree is faster, since each shape costs some 0.5 µs a topic.
MOST_SHAPES: Final = 64

# Number of levels before a ``#``, positions of ``+``, and whether it ends with ``#``.
_Shape = tuple[int, tuple[int, ...], bool]


class FilterShapes(Generic[Item]):
    """Items by the text of their topic filter, as they are in ``by_filter`` now; the shapes are those of when it was
    made. Filters are without ``$share/NAME/``.

    Filters differ in their names far more than in the places of their wildcards: ten thousand ``site/NAME/+/state``
    have one shape. For each shape, a topic gives one text to look up among the filters. So only the set of shapes is
    built, 0.5 µs a filter, where a tree takes 4 to 10.
    """

    def __init__(self, by_filter: Mapping[str, Item]) -> None:
        self._by_filter = by_filter
        self._shapes = {_shape(text) for text in by_filter if "+" in text or "#" in text}

    @property
    def are_few(self) -> bool:
        """True if the shapes are few enough for this index to be faster than a tree."""
        return len(self._shapes) <= MOST_SHAPES

    def matching(self, topic: str) -> list[Item]:
        """The items whose filters match, in no promised order (MQTT 5.0, 4.7.1 and 4.7.2)."""
        find = self._by_filter.get
        items = []
        if (item := find(topic)) is not None:
            items.append(item)
        levels = topic.split("/")
        is_hidden = topic.startswith("$")
        for count, plus, is_open in self._shapes:
            if len(levels) < count or (len(levels) > count and not is_open):
                continue
            if is_hidden and (not count or 0 in plus):  # [MQTT-4.7.2-1]
                continue
            text = levels[:count]
            for position in plus:
                text[position] = "+"
            if is_open:
                text.append("#")
            if (item := find("/".join(text))) is not None:
                items.append(item)
        return items


def _shape(text: str) -> _Shape:
    levels = text.split("/")
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    return len(levels), tuple([at for at, level in enumerate(levels) if level == "+"]), is_open
