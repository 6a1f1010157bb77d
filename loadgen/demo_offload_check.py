"""Whether every output has the score that the network has for its amount, wherever it was computed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import confluent_kafka
import msgspec
import numpy as np

from millstream.loadgen.demo_offload_app import AMOUNTS, EQUALITY, network
from millstream.processor.errors import UnavailableError

_READ_RECORDS: Final = 10_000
_READ_S: Final = 0.5
_SILENCE_S_MAX: Final = 30.0


class _Scored(msgspec.Struct):
    amount: float
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ScoreCheck:
    """How many outputs were compared, and how many are not what the CPU's reference answers."""

    checked: int
    different: int


def check_scores(
    arguments: Mapping[str, object], topic: str, partitions: int, tell: Callable[[int], None]
) -> ScoreCheck:
    """Read all committed outputs and compare each; the reference is computed here. `tell` hears how many were read.

    Raises UnavailableError where the topic's end is not reached.
    """
    expected = network(np.arange(AMOUNTS))
    decoder = msgspec.json.Decoder(_Scored)
    checked = different = 0
    ends: set[int] = set()
    heard = time.monotonic()
    consumer = confluent_kafka.Consumer(
        {
            **arguments,
            # The client wants a group's name; nothing is ever joined or committed under it.
            "group.id": f"millstream-check-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, number, begin) for number in range(partitions)])
        while len(ends) < partitions:
            values = []
            for message in consumer.consume(_READ_RECORDS, _READ_S):
                error = message.error()
                if error is None:
                    values.append(decoder.decode(message.value() or b""))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka has no other name
                    ends.add(message.partition() or 0)
            if values:
                heard = time.monotonic()
                checked += len(values)
                different += _different(values, expected)
                tell(checked)
            elif time.monotonic() - heard > _SILENCE_S_MAX:
                raise UnavailableError(f"the end of {topic} was not reached: no record for {_SILENCE_S_MAX:.0f} s")
    finally:
        consumer.close()
    return ScoreCheck(checked, different)


def _different(values: list[_Scored], expected: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    amounts = np.array([one.amount for one in values])
    found = np.array([np.nan if one.score is None else one.score for one in values])
    wanted = expected[np.floor(amounts).astype(np.int64)]
    is_equal = np.isclose(found, wanted, rtol=EQUALITY.relative, atol=EQUALITY.absolute)
    return int(np.count_nonzero(~is_equal))
