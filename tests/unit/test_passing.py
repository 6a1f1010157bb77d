"""Errors of a cluster that pass are asked away, within a bound; all others are told at once."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from millstream.loadgen import passing
from millstream.loadgen.passing import PASSING_S, UNKNOWN_S, patiently


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(passing, "time", clock)
    return clock


class Cluster:
    """Answers after so many refusals."""

    def __init__(self, code: int, refusals: int) -> None:
        self._code = code
        self.asked, self._refusals = 0, refusals

    def ask(self) -> str:
        self.asked += 1
        if self.asked <= self._refusals:
            raise confluent_kafka.KafkaException(KafkaError(self._code))
        return "yes"


@pytest.mark.parametrize(
    "code",
    [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.COORDINATOR_LOAD_IN_PROGRESS],
)
def test_what_passes_is_asked_again(code: int) -> None:
    cluster = Cluster(code, refusals=3)
    assert patiently(cluster.ask) == "yes"
    assert cluster.asked == 4


@pytest.mark.parametrize(
    ("code", "within_s"), [(KafkaError.UNKNOWN_TOPIC_OR_PART, UNKNOWN_S), (KafkaError.LEADER_NOT_AVAILABLE, PASSING_S)]
)
def test_what_does_not_pass_in_time_is_told(clock: Clock, code: int, within_s: float) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        patiently(Cluster(code, refusals=10_000).ask)
    assert raised.value.args[0].code() == code
    assert within_s < clock.now < within_s + 1


def test_any_other_error_is_told_at_once() -> None:
    cluster = Cluster(KafkaError.TOPIC_AUTHORIZATION_FAILED, refusals=1)
    with pytest.raises(confluent_kafka.KafkaException):
        patiently(cluster.ask)
    assert cluster.asked == 1
