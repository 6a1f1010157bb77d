"""Which frames a rule strikes, and what becomes of them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from fake_kafka import frame

from millstream.connectors.kafka.requests import MetadataRequest
from millstream.connectors.kafka.transaction_requests import EndTxnRequest, ProduceRequest, ProducerIdentity
from millstream.loadgen.fault_rules import (
    Delay,
    Fault,
    Frame,
    Hold,
    Reset,
    Rule,
    RuleBook,
    Struck,
    Swallow,
    Wait,
    Way,
    cut,
)
from millstream.loadgen.kafka_frames import TO_TRANSACTION_COORDINATOR, Api, Request, read_request
from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import SettingsError
from millstream.processor.partitions import TopicPartition

END = frame(EndTxnRequest("p.0", ProducerIdentity(7, 1)))
METADATA = frame(MetadataRequest(["a"]))
BEAT = frame(ProduceRequest(None, {TopicPartition("beats", 0): b"x"}, 1))
OUTPUT = frame(ProduceRequest("p.0", {TopicPartition("out", 0): b"x", TopicPartition("other", 0): b"x"}, 1))
START = Moment(100.0, 0.0)


def at(seconds: float) -> Moment:
    """So many seconds after the frames came."""
    return Moment(100.0 + seconds, seconds)


def coming(request: Request, way: Way = Way.REQUESTS, broker: int = 1) -> Frame:
    return Frame(way, request, broker, START.monotonic_s)


def book_with(*rules: Rule, seed: int = 1) -> tuple[RuleBook, Fault]:
    book = RuleBook(seed, {})
    fault = Fault(rules, Strike("a fault", "here", START, START))
    book.add(fault)
    return book, fault


def test_without_rules_everything_passes() -> None:
    assert RuleBook(1, {}).decide(coming(END), START) is None


def test_held_back_answers_wait_from_when_they_came() -> None:
    book, fault = book_with(Rule(Delay(5.0), Way.ANSWERS, apis={Api.END_TXN}))
    answer = coming(END, Way.ANSWERS)
    assert book.decide(answer, at(1)) == Wait(105.0)
    assert book.decide(answer, at(5)) is None
    assert book.decide(coming(END), at(1)) is None
    assert book.decide(coming(METADATA, Way.ANSWERS), at(1)) is None
    assert (fault.hits, fault.first_hit) == (1, at(1))


def test_the_longest_of_several_delays_counts() -> None:
    book, _ = book_with(Rule(Delay(5.0), Way.REQUESTS), Rule(Delay(1.0), Way.REQUESTS))
    assert book.decide(coming(END), START) == Wait(105.0)


def test_what_is_held_passes_when_the_rule_is_lifted() -> None:
    book, fault = book_with(Rule(Hold(), Way.ANSWERS))
    answer = coming(END, Way.ANSWERS)
    assert book.decide(answer, at(1000)) == Wait(float("inf"))
    book.remove(fault)
    assert book.decide(answer, at(1000)) is None


def test_everything_to_the_transaction_coordinator_is_delayed_and_nothing_else() -> None:
    book, _ = book_with(Rule(Delay(0.2), Way.REQUESTS, apis=TO_TRANSACTION_COORDINATOR))
    assert book.decide(coming(END), START) == Wait(100.2)
    assert book.decide(coming(OUTPUT), START) is None


@pytest.mark.parametrize(("ways", "struck"), [((), set(Way)), ((Way.ANSWERS,), {Way.ANSWERS})])
def test_a_cut_swallows_one_way_or_both(ways: tuple[Way, ...], struck: set[Way]) -> None:
    book, fault = book_with(*cut(*ways))
    found = {way for way in Way if book.decide(coming(METADATA, way), START) == Struck(Swallow(), fault)}
    assert found == struck


def test_a_cut_of_one_topic_leaves_the_others_alone() -> None:
    book, fault = book_with(*cut(topics={"beats"}))
    for way in Way:
        assert book.decide(coming(BEAT, way), START) == Struck(Swallow(), fault)
        assert book.decide(coming(OUTPUT, way), START) is None
        assert book.decide(coming(METADATA, way), START) is None


def test_one_of_several_topics_is_enough() -> None:
    book, fault = book_with(*cut(topics={"other"}))
    assert book.decide(coming(OUTPUT), START) == Struck(Swallow(), fault)


def test_rules_can_name_transactional_ids_and_brokers() -> None:
    book, fault = book_with(Rule(Reset(), Way.REQUESTS, transactional_ids={"p.0"}, brokers={2}))
    assert book.decide(coming(END, broker=2), START) == Struck(Reset(), fault)
    assert book.decide(coming(END, broker=1), START) is None
    assert book.decide(coming(BEAT, broker=2), START) is None


def test_dice_are_thrown_once_for_each_frame_and_by_the_seed() -> None:
    def struck(seed: int) -> list[bool]:
        book, _ = book_with(Rule(Reset(), Way.REQUESTS, probability=0.3), seed=seed)
        decided = []
        for _ in range(300):
            coming_frame = coming(END)
            first = book.decide(coming_frame, START)
            assert book.decide(coming_frame, START) == first
            decided.append(first is not None)
        return decided

    assert struck(3) == struck(3) != struck(4)
    assert 50 < sum(struck(3)) < 130


def test_a_rule_can_be_used_up() -> None:
    book, fault = book_with(Rule(Delay(1.0), Way.ANSWERS, apis={Api.END_TXN}, times=2))
    decisions = [book.decide(coming(request, Way.ANSWERS), START) for request in (METADATA, END, END, END)]
    assert decisions == [None, Wait(101.0), Wait(101.0), None]
    assert fault.hits == 2


def test_only_rules_with_topics_need_whole_frames() -> None:
    book, _ = book_with(*cut(topics={"beats"}), Rule(Delay(1), Way.REQUESTS, transactional_ids={"p.0"}))
    assert book.needs_whole(Way.REQUESTS, BEAT, 1)
    assert not book.needs_whole(Way.REQUESTS, END, 1)
    book, _ = book_with(*cut())
    assert not book.needs_whole(Way.REQUESTS, BEAT, 1)


def test_a_frame_that_cannot_be_looked_into_is_no_obstacle_where_nobody_asks() -> None:
    strange = read_request(struct.pack(">hhi", 0, 90, 1) + bytes(30), 38)
    book, _ = book_with(Rule(Delay(1.0), Way.ANSWERS))
    assert book.decide(coming(strange), START) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"action": Delay(0)}, "a delay of 0 s"),
        ({"action": Reset(), "probability": 0}, "probability 0"),
        ({"action": Reset(), "times": 0}, "times 0"),
        ({"action": Reset(), "topics": {"a"}, "apis": {Api.END_TXN}}, "requests 26 are not looked into for topics"),
        ({"action": Reset(), "transactional_ids": {"a"}, "apis": {Api.FETCH}}, "requests 1 are not looked into"),
    ],
)
def test_a_rule_that_could_not_be_meant_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Rule(way=Way.REQUESTS, **wrong)
