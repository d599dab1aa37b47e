"""Topics: their tree."""

from __future__ import annotations

from broker.admin.topics import TopicRest, TopicRow
from ui.api.models.shapes import Page


class TopicPage(Page[TopicRow]):
    """A page of the levels right below a level, `under`, or of all topics below it that match.

    The numbers of `under` are those of its own topic, of all its levels and of `rest`. `is_sampled` means that so much
    was published that counts and rates are estimates from a sample.
    """

    under: TopicRow
    rest: TopicRest
    counting_since: str
    is_sampled: bool
