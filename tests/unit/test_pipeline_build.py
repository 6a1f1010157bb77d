"""Mistakes are found when a pipeline is built, all of them, before anything runs."""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numba
import numpy as np
import pytest
from pipeline_types import Payment, score

from millstream.processor import Columns, Fidelity, OnError, Pipeline, PipelineError, Record
from millstream.processor.graph import Graph
from millstream.processor.stalled import StageLimit, WatchPlan


def mistakes_of(pipeline: Pipeline) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        pipeline.build()
    return list(caught.value.mistakes)


def one_mistake(write: Callable[[Pipeline], Any], **settings: Any) -> str:
    pipeline = Pipeline("test", **settings)
    write(pipeline)
    mistakes = mistakes_of(pipeline)
    assert len(mistakes) == 1, mistakes
    return mistakes[0]


async def fetch(payment: Payment) -> Payment:
    return payment


def three(a: int, b: int, c: int) -> int:
    return a + b + c


def needs_keyword(value: bytes, *, mode: str) -> bytes:
    return value


def nothing(value: bytes) -> None:
    raise NotImplementedError


async def async_numbers(value: bytes) -> Any:
    yield value


def numbers(value: bytes) -> Any:
    yield value


def test_a_sound_pipeline_tells_what_it_reads_and_writes() -> None:
    pipeline = Pipeline("fraud", shards=4, guarantee="at-least-once", missing_topics="create", commit_interval_ms=50)
    stream = pipeline.read("payments", Payment, start="latest", on_offset_lost="earliest")
    stream.map(score).write("scored")
    stream.write(lambda p: "a", topics=["a", "b"], on_error="dead-letter")

    built = pipeline.build()

    assert [(i.topic, i.start, i.on_offset_lost) for i in built.inputs] == [("payments", "latest", "earliest")]
    assert built.output_topics == ("scored", "a", "b")
    assert built.dead_letter_topic == "fraud.dead-letters"
    assert (built.name, built.shards, built.guarantee, built.missing_topics) == ("fraud", 4, "at-least-once", "create")
    assert built.settings.commit_interval_ms == 50


def test_there_is_a_dead_letter_topic_only_where_some_stage_uses_it() -> None:
    pipeline = Pipeline("test", dead_letter_topic="graveyard")
    pipeline.read("in").write("out")
    assert pipeline.build().dead_letter_topic is None

    pipeline = Pipeline("test", dead_letter_topic="graveyard")
    pipeline.read("in", on_error=OnError.dead_letter()).write("out")
    assert pipeline.build().dead_letter_topic == "graveyard"


def test_every_stage_has_a_time_limit_its_own_or_the_pipelines() -> None:
    pipeline = Pipeline("p", stage_timeout_s=30, stage_attempts=5)

    async def ask(value: bytes) -> bytes:
        return value

    stream = pipeline.read(["a", "b"])
    stream.map(ask, stage_timeout_s=2.5).write("asked", stage_timeout_s=1)
    stream.filter_columns(lambda columns: columns.offset > 0, name="odd", stage_timeout_s=9).write("filtered")

    assert pipeline.build().watch_plan == WatchPlan(
        [
            StageLimit("read a, b", 30.0),
            StageLimit("map ask", 2.5, is_async=True),
            StageLimit("write asked", 1.0),
            StageLimit("odd", 9.0),
            StageLimit("write filtered", 30.0),
        ],
        ["a", "b"],
        attempts=5,
    )


def test_all_mistakes_are_reported_at_once_and_each_names_its_stage() -> None:
    pipeline = Pipeline(
        "bad name",
        shards=0,
        guarantee="perhaps",
        missing_topics="guess",
        commit_interval_ms=-1,
        stage_timeout_s="1m",
        stage_attempts=1,
    )  # type: ignore[arg-type]
    stream = pipeline.read("in", format="yaml")
    stream.map(three, stage_timeout_s=0).write("in")
    pipeline.read("numbers").filter(lambda value: value, concurrency=0, name="positive").write("out", key=5)  # type: ignore[arg-type]

    mistakes = "\n".join(mistakes_of(pipeline))

    for expected in (
        "'bad name' is not a legal name",
        "shards=0 must be",
        "guarantee='perhaps' is unknown",
        "missing_topics='guess' is unknown",
        "commit_interval_ms=-1 must be",
        "stage_timeout_s='1m' must be a number of seconds from 0.5 to 3600",
        "stage_attempts=1 must be a whole number from 2 to 100",
        "map three: stage_timeout_s=0 must be",
        "read in: format 'yaml' is unknown",
        "map three: three requires 3 arguments (a, b, c)",
        "topic 'in' is both read and written",
        "positive: concurrency=0 must be",
        "write out: key: a key must be bytes, str or None, not int",
    ):
        assert expected in mistakes


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda p: p.read("in"), "read in: what it lets through goes nowhere"),
        (lambda p: p.read("in").map(lambda v: v), "map: what it lets through goes nowhere"),
        (lambda p: None, "it reads nothing"),
        (lambda p: p.read([]).write("out"), "read : reads no topic; name at least one"),
        (lambda p: p.read("in put").write("out"), "topic 'in put' is not a legal name"),
        (lambda p: p.read("in").write("x" * 250), "has 250 characters; at most 249"),
        (lambda p: p.read("in").write(".."), "topic '..' is not a legal name"),
        (lambda p: p.read("in").map(lambda: b"").write("out"), "takes no argument"),
        (lambda p: p.read("in").map(needs_keyword).write("out"), "requires mode by name"),
        (lambda p: p.read("in").map(nothing).write("out"), "nothing promises to return None, and so would write"),
        (lambda p: p.read("in").filter(nothing).write("out"), "nothing promises to return None, which lets nothing"),
        (lambda p: p.read("in").map(5).write("out"), "expected a function, got int"),
        (lambda p: p.read("in").flat_map(async_numbers).write("out"), "is an async generator"),
        (lambda p: p.read("in").map(numbers).write("out"), "is a generator function; only flat_map"),
        (lambda p: p.read("in").filter(numbers).write("out"), "is a generator function; only flat_map"),
        (lambda p: p.read("in").filter(lambda v: v, timeout_ms=5).write("out"), "timeout_ms works only with an async"),
        (lambda p: p.read("in", Payment).map(fetch, timeout_ms=0).write("out"), "timeout_ms=0 must be"),
        (lambda p: p.read("in", start="now").write("out"), "start='now' is unknown"),
        (lambda p: p.read("in", start=datetime(2024, 1, 1)).write("out"), "has no time zone"),  # noqa: DTZ001
        (lambda p: p.read("in", on_offset_lost="cry").write("out"), "on_offset_lost='cry' is unknown"),
        (lambda p: p.read("in", tombstones="keep").write("out"), "tombstones='keep' is unknown"),
        (lambda p: p.read("in", on_error="explode").write("out"), "error policy 'explode' is unknown"),
        (lambda p: p.read("in", on_error=OnError.skip().retry(101)).write("out"), "retries=101 must be"),
        (lambda p: p.read("in").write("out", on_error=OnError("stop", backoff_ms=-1)), "backoff_ms=-1 must be"),
        (lambda p: p.read("in", Payment).write("out", key=fetch), "key: fetch is async"),
        (lambda p: p.read("in").write(lambda v: "out"), "topics=[...] must list all topics"),
        (lambda p: p.read("in").write("out", topics=["a"]), "a constant topic needs none"),
        (lambda p: p.read("in").write("out", headers={"a": 1}), "headers must be a dict or (name, value) pairs"),
        (lambda p: p.read("in").write("out", timestamp=-5), "a timestamp must be milliseconds since 1970"),
        (lambda p: p.read("in", name="\n").write("out"), "must be printable text"),
        (lambda p: p.read("in", complex).write("out"), "complex"),
        (lambda p: p.read("in", Payment).columns(fetch).write("out"), "column functions are plain functions"),
        (lambda p: p.read("in").columns(lambda a, b: a).write("out"), "it is called with the columns alone"),
        (lambda p: p.read("in").columns(lambda c: {}, reads={"a": int}).write("out"), "have no fields"),
        (
            lambda p: p.read("in", Payment, format="msgpack").columns(lambda c: {}).write("out"),
            "format 'msgpack' has no columns",
        ),
        (
            lambda p: p.read("in", Payment).columns(lambda c: {}, reads={"amuont": float}).write("out"),
            "reads 'amuont', which Payment does not have; it has 'user', 'amount'",
        ),
        (
            lambda p: p.read("in", dict).columns(lambda c: {}, reads={"a": complex}).write("out"),
            "reads['a']: no column type for",
        ),
        (
            lambda p: p.read("in", dict).columns(lambda c: {}, reads={"a": int}, adds={"a": int}).write("out"),
            "'a' is both in reads and in adds",
        ),
        (
            lambda p: p.read("in", np.dtype([("a", "<i4")])).filter_columns(lambda c: c, reads={"b": 0}).write("out"),
            "reads 'b', which the dtype does not have; it has 'a'",
        ),
        (
            lambda p: p.read("in", np.dtype([("a", "<i4")])).columns(lambda c: c, adds={"a": "<i4"}).write("out"),
            "adds 'a', which the dtype already has",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(write: Callable[[Pipeline], Any], expected: str) -> None:
    assert expected in one_mistake(write)


def test_reading_a_topic_twice_is_refused_because_a_stream_can_be_used_twice() -> None:
    def write(pipeline: Pipeline) -> None:
        pipeline.read(["a", "b"]).write("out")
        pipeline.read("b").write("out")

    assert one_mistake(write) == "topic 'b' is read 2 times; read it once and use the stream several times"


def test_a_dead_letter_topic_that_is_read_or_written_is_refused() -> None:
    loop = one_mistake(lambda p: p.read("test.dead-letters").write("out"), on_error="dead-letter")
    assert "is also read; that would be a loop" in loop
    shared = one_mistake(lambda p: p.read("in").write("out"), on_error="dead-letter", dead_letter_topic="out")
    assert "is also written; give it a topic of its own" in shared


def test_two_stages_with_the_same_given_name_are_refused_but_default_names_are_numbered() -> None:
    def write(pipeline: Pipeline) -> None:
        pipeline.read("in").map(lambda v: v, name="same").map(lambda v: v, name="same").write("out")

    assert one_mistake(write) == "2 stages have the name 'same'; give each its own name="
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).map(score).filter(bool).filter(bool).write("out")
    graph: Graph = pipeline._draft.graph()
    assert graph.names() == ("read in", "map score", "filter bool", "filter bool 2", "write out")


def test_one_side_of_a_split_may_be_left_unused() -> None:
    pipeline = Pipeline("test")
    wanted, _ = pipeline.read("in").split(lambda value: value)
    wanted.write("out")
    assert pipeline.build().output_topics == ("out",)


def test_the_return_annotation_decides_the_format_that_is_written() -> None:
    def format_of(function: Callable[..., Any], *source: Any) -> str:
        pipeline = Pipeline("test")
        pipeline.read("in", *source).map(function).write("out")
        return pipeline.build().output_codecs["out"].format

    def to_payment(value: bytes) -> Payment:
        raise NotImplementedError

    def to_text(value: object) -> str:
        raise NotImplementedError

    def to_bytes(value: object) -> bytes | None:
        raise NotImplementedError

    assert format_of(to_payment) == "json"
    assert format_of(to_text) == "text"
    assert format_of(to_text, Payment) == "json"
    assert format_of(to_bytes, Payment) == "raw"
    assert format_of(lambda value: value) == "raw"
    assert format_of(lambda value: value, Payment) == "json"
    assert format_of(fetch, Payment) == "json"
    assert format_of(str, Payment) == "json"


def test_a_format_chosen_for_the_input_stays_through_a_map() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment, format="msgpack")
    stream.map(score).write("out")
    stream.map(score).write("as-json", format="json")
    stream.map(lambda p: (p.user, p.amount)).write("typed", type=tuple[str, float])
    codecs = pipeline.build().output_codecs
    assert {topic: codec.format for topic, codec in codecs.items()} == {
        "out": "msgpack",
        "as-json": "json",
        "typed": "msgpack",
    }


def test_functions_of_every_kind_are_understood() -> None:
    class Caller:
        async def __call__(self, payment: Payment) -> Payment:
            return payment

        def method(self, payment: Payment, record: Record) -> bytes:
            return record.key or payment.user.encode()

    @functools.lru_cache
    def cached(payment: Payment) -> bytes:
        raise NotImplementedError

    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment)
    stream.map(Caller()).map(functools.partial(fetch)).write("async")
    stream.map(Caller().method).write("method")
    stream.map(cached).write("cached")
    stream.map(operator.attrgetter("user")).write("getter")
    stream.map(repr).write("built-in")
    pipeline.read("numbers", np.dtype("<i8")).map(numba.njit(lambda n: n + 1)).write("compiled")
    formats = {topic: codec.format for topic, codec in pipeline.build().output_codecs.items()}
    assert formats == {
        "async": "json",
        "method": "raw",
        "cached": "raw",
        "getter": "json",
        "built-in": "json",
        "compiled": "fixed",
    }


def test_an_annotated_item_of_a_fixed_width_record_stays_one() -> None:
    def same(quote: np.void) -> np.void:
        return quote

    pipeline = Pipeline("test")
    pipeline.read("in", np.dtype([("a", "<i4")])).map(same).write("out")
    assert pipeline.build().output_codecs["out"].format == "fixed"


def test_a_flat_map_takes_the_type_of_the_elements() -> None:
    def split(value: bytes) -> list[Payment]:
        raise NotImplementedError

    pipeline = Pipeline("test")
    pipeline.read("in").flat_map(split).write("out")
    assert pipeline.build().output_codecs["out"].name == "json Payment"


def test_an_annotation_that_leads_nowhere_is_a_mistake_where_the_type_is_needed() -> None:
    def lost(value: bytes) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        return value

    assert "cannot be resolved" in one_mistake(lambda p: p.read("in").map(lost).write("out"))
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).map(lost).write("out")
    assert pipeline.build().output_codecs["out"].format == "json"


def test_keeping_unknown_fields_does_not_restrict_what_functions_may_answer() -> None:
    pipeline = Pipeline("test", fidelity=Fidelity(unknown_fields="keep"))
    stream = pipeline.read("in", Payment)
    stream.map(lambda p: p.amount).write("out")

    def amounts(payment: Payment) -> list[float]:
        return [payment.amount]

    stream.map(amounts).write("lists")
    pipeline.build()


def test_a_format_that_would_lose_fields_that_are_to_be_kept_is_a_mistake() -> None:
    assert 'format "msgpack" loses them' in one_mistake(
        lambda p: p.read("in", Payment).write("out", format="msgpack"), fidelity=Fidelity(unknown_fields="keep")
    )


def test_a_wrong_fidelity_is_a_mistake_among_others() -> None:
    assert "fidelity must be a Fidelity(...), not str" in one_mistake(
        lambda p: p.read("in", Payment).write("out"), fidelity="keep"
    )


def test_records_and_time_zones_are_accepted_where_they_belong() -> None:
    def with_record(value: bytes, record: Record) -> bytes:
        return value

    def columns(columns: Columns) -> dict[str, Any]:
        return {"value": columns.value}

    pipeline = Pipeline("test")
    stream = pipeline.read("in", start=datetime(2024, 1, 1, tzinfo=UTC))
    stream.map(with_record).columns(columns).write("out", key=with_record)
    assert pipeline.build().inputs[0].start == datetime(2024, 1, 1, tzinfo=UTC)


def test_a_pipeline_is_plain_data_until_it_is_built() -> None:
    pipeline = Pipeline("???")
    pipeline.read("in").map(three)
    assert re.search(r"2 stages", repr(pipeline))
