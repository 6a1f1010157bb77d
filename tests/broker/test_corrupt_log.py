"""Batches damaged on the broker's disk: told by their place, and left out by themselves where that is wanted."""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from outside import Outside

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.processor import Pipeline
from millstream.processor.errors import StageError

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

BEFORE = [(b"k", b"before-%d" % i) for i in range(3)]
DAMAGED = [(b"k", b"damaged-%d" % i) for i in range(4)]
BEHIND = [(b"k", b"behind-%d" % i) for i in range(5)]

# Where the batch's length, and its records, stand behind its base offset.
_LENGTH_AT = 8
_RECORDS_AT = 61


@dataclass(frozen=True)
class Damaged:
    """A cluster whose topics hold three batches each, the second of which is damaged."""

    outside: Outside
    names: dict[str, str]

    def source(self, damage: str) -> str:
        return self.names[damage]

    def target(self) -> str:
        return self.outside.topic("out", partitions=1)

    def run(self, pipeline: Pipeline) -> Any:
        return asyncio.run(pipeline.run(brokers=self.outside.bootstrap, until="caught-up", timeout_s=40))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    directory = tmp_path_factory.mktemp("broker")
    numbers = itertools.count()
    with DevelopmentBroker(data_directory=directory, heap_mb=512) as broker:
        outside = Outside(broker.bootstrap, lambda purpose: f"{purpose}-{next(numbers)}")
        names = {damage: outside.topic(damage, partitions=1) for damage in ("payload", "length")}
        for name in names.values():
            for records in (BEFORE, DAMAGED, BEHIND):
                outside.send(name, records, linger_ms=200)
        # An orderly stop: after a crash the broker itself would cut the log at the damage.
        broker.stop()
        flip_byte(segment(directory, names["payload"]), _RECORDS_AT + 12)
        broker.start()
        # With this a broker does not even start.
        flip_byte(segment(directory, names["length"]), _LENGTH_AT)
        yield Damaged(outside, names)


def segment(directory: Path, topic: str) -> Path:
    (file,) = (directory / "log" / f"{topic}-0").glob("*.log")
    return file


def flip_byte(file: Path, position_in_batch: int) -> None:
    """Damage the second of the three batches."""
    data = bytearray(file.read_bytes())
    starts = [0]
    while starts[-1] < len(data):
        (length,) = struct.unpack_from(">i", data, starts[-1] + _LENGTH_AT)
        starts.append(starts[-1] + 12 + length)
    assert len(starts) == 4
    position = starts[1] + position_in_batch
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(bytes([data[position] ^ 0xFF]))


def values(outside: Outside, topic: str) -> list[bytes | None]:
    return [message.value for message in outside.read(topic)]


def only_values(*parts: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for part in parts for _, value in part]


def test_stop_commits_what_stands_before_it_and_names_place_and_remedy(damaged: Damaged) -> None:
    source, target = damaged.source("payload"), damaged.target()
    pipeline = Pipeline("stops")
    pipeline.read(source).write(target)
    for _ in range(2):
        with pytest.raises(StageError, match=rf"{re.escape(source)}-0@3: .*3 reads.*CRC.*on_error='dead-letter'"):
            damaged.run(pipeline)
    assert values(damaged.outside, target) == only_values(BEFORE)


def test_skip_goes_on_behind_it_and_its_neighbours_arrive_once(damaged: Damaged) -> None:
    source, target = damaged.source("payload"), damaged.target()
    pipeline = Pipeline("skips")
    pipeline.read(source, on_error="skip").write(target)
    counts = damaged.run(pipeline).counts
    assert (counts.records_in, counts.skipped, counts.dead_letters) == (8, 1, 0)
    assert damaged.run(pipeline).counts.records_in == 0
    assert values(damaged.outside, target) == only_values(BEFORE, BEHIND)


def test_a_dead_letter_says_what_was_left_out(damaged: Damaged) -> None:
    source, target = damaged.source("payload"), damaged.target()
    pipeline = Pipeline("keeps-note")
    pipeline.read(source, on_error="dead-letter", name="incoming").write(target)
    counts = damaged.run(pipeline).counts
    assert (counts.records_in, counts.skipped, counts.dead_letters) == (8, 0, 1)
    assert damaged.run(pipeline).counts.dead_letters == 0
    assert values(damaged.outside, target) == only_values(BEFORE, BEHIND)
    (letter,) = damaged.outside.read("keeps-note.dead-letters")
    assert (letter.key, letter.value) == (None, None)
    headers = dict(letter.headers)
    assert headers["millstream.error.stage"] == b"incoming"
    assert headers["millstream.error.topic"] == source.encode()
    assert headers["millstream.error.offset"] == b"3"
    assert headers["millstream.error.type"] == b"CorruptBatchError"
    assert headers["millstream.error.attempts"] == b"3"


@pytest.mark.parametrize("policy", ["stop", "skip", "dead-letter"])
def test_damage_that_the_broker_itself_cannot_pass_stops_whatever_the_policy(damaged: Damaged, policy: Any) -> None:
    source, target = damaged.source("length"), damaged.target()
    pipeline = Pipeline(f"hidden-end-{policy}")
    pipeline.read(source, on_error=policy).write(target)
    with pytest.raises(StageError, match=rf"{re.escape(source)}-0@3: .*damaged.*CORRUPT_MESSAGE"):
        damaged.run(pipeline)
    assert values(damaged.outside, target) == only_values(BEFORE)
