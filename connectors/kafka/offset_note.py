"""The note that is kept with a committed offset: which topic it belongs to, so that a topic made anew is recognised."""

from __future__ import annotations

from typing import Final

from millstream.connectors.kafka.requests import TopicView

_PREFIX: Final = "topic="


def note_for(topic: TopicView | None) -> str:
    """What to keep with an offset of this topic; empty for one that is not known."""
    return "" if topic is None else f"{_PREFIX}{topic.topic_id}"


def is_stale(note: str, topic: TopicView | None) -> bool:
    """Whether the offset belongs to another topic of that name than the one that is there.

    Offsets that another program wrote (Kafka's reset tool, say) carry no note, and are believed.
    """
    return note.startswith(_PREFIX) and note != note_for(topic)
