"""What becomes of a record on which a stage fails: stop, dead-letter or skip, after bounded retries."""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_types import Payment, headers_of, payment, raws, score

from millstream.processor import DecodeError, OnError, Pipeline, Record, StageError, TestRecord
from millstream.processor.columns import Slices
from millstream.processor.headers import decode_headers, encode_headers
from millstream.processor.interfaces import Effects
from millstream.processor.policy import RETRIES_MAX
from millstream.processor.stages.calls import call_each
from millstream.processor.testing import input_records

SECRET = b"secret-payload"
# One header, whose name is not UTF-8: Java clients can write it.
UNREADABLE = b"\x02\x04\xff\xfe\x02x"


def refuse_secrets(value: bytes) -> bytes:
    if SECRET in value:
        raise ValueError("it is not for sale")
    return value + b"!"


def test_stop_is_the_default_and_names_everything_but_the_payload() -> None:
    pipeline = Pipeline("fraud")
    pipeline.read("in").map(refuse_secrets).write("out")
    with pytest.raises(StageError) as caught:
        pipeline.test([b"a", TestRecord(value=SECRET, partition=2, offset=17)])
    text = str(caught.value)
    assert text == (
        "pipeline 'fraud', stage 'map refuse_secrets': failed on in-2@17 after 1 attempt: "
        "ValueError: it is not for sale"
    )
    assert isinstance(caught.value.__cause__, ValueError)


def test_stop_names_the_first_record_in_the_batch_that_fails() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").map(refuse_secrets).write("out")
    with pytest.raises(StageError, match="in-0@1 "):
        pipeline.test([b"a", SECRET, b"b", SECRET])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_under_stop_nothing_is_called_after_the_first_that_fails(asynchronous: bool) -> None:
    called: list[bytes] = []

    def fail_on_b(value: bytes) -> bytes:
        called.append(value)
        if value == b"b":
            raise ValueError
        return value

    async def fail_on_b_later(value: bytes) -> bytes:
        return fail_on_b(value)

    pipeline = Pipeline("test")
    pipeline.read("in").map(fail_on_b_later if asynchronous else fail_on_b, concurrency=1).write("out")  # type: ignore[call-overload]
    with pytest.raises(StageError):
        pipeline.test([b"a", b"b", b"c", b"d"])
    assert called == [b"a", b"b"]


def test_a_dead_letter_has_the_original_and_says_where_why_and_how_often() -> None:
    pipeline = Pipeline("fraud")
    stage = OnError.dead_letter().retry(2, backoff_ms=0)
    pipeline.read("in").map(bytes.upper).map(bytes.lower).map(refuse_secrets, on_error=stage).write("out")
    given = TestRecord(
        value=SECRET, key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=99, partition=1, offset=8
    )
    result = pipeline.test([b"a", given, b"b"])

    assert raws(result) == [b"a!", b"b!"]
    (letter,) = result.dead_letters
    assert (letter.topic, letter.key, letter.raw, letter.timestamp_ms) == ("fraud.dead-letters", b"k", SECRET, 99)
    assert letter.headers == [
        ("h", b"1"),
        ("h", None),
        ("millstream.error.pipeline", b"fraud"),
        ("millstream.error.stage", b"map refuse_secrets"),
        ("millstream.error.topic", b"in"),
        ("millstream.error.partition", b"1"),
        ("millstream.error.offset", b"8"),
        ("millstream.error.timestamp", b"99"),
        ("millstream.error.type", b"ValueError"),
        ("millstream.error.message", b"it is not for sale"),
        ("millstream.error.attempts", b"3"),
    ]
    assert (result.counts.dead_letters, result.counts.retries, result.counts.records_out) == (1, 2, 2)


def effects_with_headers(pipeline: Pipeline, section: bytes) -> Effects:
    """One record with this header section, through the pipeline."""
    built = pipeline.build()
    made = input_records(built, [TestRecord(value=SECRET)], None)
    return asyncio.run(built.program.process(replace(made, headers=Slices.from_list([section])), {}))


def test_headers_that_cannot_be_read_reach_the_dead_letter_to_the_byte() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").map(refuse_secrets).write("out")
    (letters,) = effects_with_headers(pipeline, UNREADABLE).outputs
    written = letters.headers[0] or b""
    assert written.startswith(b"\x14" + UNREADABLE[1:])
    assert encode_headers([("millstream.error.pipeline", b"test")])[1:] in written


@pytest.mark.parametrize("section", [b"\xff\xff\xff\xff\xff\xff", b"\x80"])
def test_headers_whose_very_count_is_damaged_do_not_stop_a_dead_letter(section: bytes) -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").map(refuse_secrets).write("out")
    (letters,) = effects_with_headers(pipeline, section).outputs
    assert dict(decode_headers(letters.headers[0] or b""))["millstream.error.stage"] == b"map refuse_secrets"


def test_a_message_without_end_is_cut_off() -> None:
    def fail(value: bytes) -> bytes:
        raise ValueError("x" * 100_000)

    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").map(fail).write("out")
    message = headers_of(pipeline.test([b"a"]))["millstream.error.message"] or b""
    assert len(message.decode()) == 1000


def test_an_error_text_with_half_a_surrogate_pair_does_no_harm() -> None:
    def fail(value: bytes) -> bytes:
        raise ValueError("bad \ud800")

    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").map(fail).write("out")
    assert headers_of(pipeline.test([b"a"]))["millstream.error.message"] == b"bad \\ud800"


def test_skip_leaves_the_record_out_and_counts_it() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").map(refuse_secrets, on_error="skip").write("out")
    result = pipeline.test([b"a", SECRET, b"b", SECRET])
    assert raws(result) == [b"a!", b"b!"]
    assert (result.counts.skipped, result.counts.dead_letters) == (2, 0)
    assert result.dead_letters == []


def test_bytes_that_do_not_decode_fall_under_the_policy_of_the_read() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment, on_error="dead-letter")
    stream.map(score, on_error="skip").write("out")
    stream.filter(lambda p: True).write("copy")
    result = pipeline.test([payment(1.0), b"{", b'{"user":5}', payment(2.0)])
    assert len(raws(result)) == 2
    assert len(raws(result, "copy")) == 2
    # Two branches asked for them, but a record is one dead letter.
    assert [letter.raw for letter in result.dead_letters] == [b"{", b'{"user":5}']
    assert headers_of(result)["millstream.error.stage"] == b"read in"
    assert headers_of(result)["millstream.error.type"] == DecodeError.__name__.encode()


def test_a_stage_may_differ_from_its_read_and_a_read_from_its_pipeline() -> None:
    pipeline = Pipeline("test", on_error="skip")
    stream = pipeline.read("in", on_error="dead-letter")
    stream.map(refuse_secrets, on_error="skip").write("a")
    stream.map(refuse_secrets).write("b")
    other = pipeline.read("other")
    other.map(refuse_secrets).write("c")
    assert pipeline.test([SECRET], topic="in").counts.dead_letters == 1
    assert pipeline.test([SECRET], topic="other").counts.skipped == 1


def test_only_what_failed_is_tried_again_and_successes_take_their_place() -> None:
    calls: list[bytes] = []

    def flaky(value: bytes) -> bytes:
        calls.append(value)
        if value == b"b" and calls.count(b"b") < 3:
            raise ConnectionError("not yet")
        return value.upper()

    pipeline = Pipeline("test", on_error=OnError.stop().retry(5, backoff_ms=0))
    pipeline.read("in").map(flaky).write("out")
    result = pipeline.test([b"a", b"b", b"c"])
    assert raws(result) == [b"A", b"B", b"C"]
    assert calls == [b"a", b"b", b"c", b"b", b"b"]
    assert result.counts.retries == 2


def test_an_async_stage_and_a_generator_are_retried_alike() -> None:
    attempts = 0

    async def flaky(value: bytes) -> bytes:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ConnectionError("not yet")
        return value

    def flaky_generator(value: bytes) -> Any:
        nonlocal attempts
        attempts += 1
        yield value
        if attempts < 3:
            raise ConnectionError("in the middle")

    pipeline = Pipeline("test", on_error=OnError.stop().retry(2, backoff_ms=0))
    stream = pipeline.read("in")
    stream.map(flaky).write("out")
    assert raws(pipeline.test([b"a"])) == [b"a"]
    attempts = 0
    pipeline = Pipeline("test", on_error=OnError.stop().retry(2, backoff_ms=0))
    pipeline.read("in").flat_map(flaky_generator).write("out")
    assert raws(pipeline.test([b"a"])) == [b"a"]


def test_a_record_is_one_dead_letter_of_a_stage_however_many_of_its_parts_fail() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    parts = pipeline.read("in").flat_map(lambda v: [b"ok", SECRET, SECRET, b"fine"])
    parts.map(refuse_secrets).write("out")
    parts.map(refuse_secrets, name="other").write("too")
    result = pipeline.test([b"a"])
    assert raws(result) == [b"ok!", b"fine!"]
    stages = [dict(letter.headers)["millstream.error.stage"] for letter in result.dead_letters]
    assert stages == [b"map refuse_secrets", b"other"]


def test_a_branch_that_fails_does_not_take_back_what_another_has_written() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    stream = pipeline.read("in")
    stream.write("copy")
    stream.map(refuse_secrets).write("out")
    result = pipeline.test([SECRET])
    assert raws(result, "copy") == [SECRET]
    assert len(result.dead_letters) == 1


def test_a_function_that_raises_stop_iteration_does_not_end_the_batch() -> None:
    def stops(value: bytes) -> bytes:
        if value == b"b":
            raise StopIteration
        return value

    pipeline = Pipeline("test", on_error="skip")
    pipeline.read("in").map(stops).write("out")
    assert raws(pipeline.test([b"a", b"b", b"c"])) == [b"a", b"c"]


def test_an_answer_that_cannot_be_told_true_or_false_fails_its_record_alone() -> None:
    class Undecided:
        def __bool__(self) -> bool:
            raise ValueError("cannot say")

    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").filter(lambda v: Undecided() if v == b"b" else True).write("out")
    result = pipeline.test([b"a", b"b", b"c"])
    assert raws(result) == [b"a", b"c"]
    assert headers_of(result)["millstream.error.message"] == b"cannot say"


def test_what_is_no_error_of_a_record_ends_the_batch() -> None:
    def interrupt(value: bytes) -> bytes:
        raise KeyboardInterrupt

    pipeline = Pipeline("test", on_error="skip")
    pipeline.read("in").map(interrupt).write("out")
    with pytest.raises(KeyboardInterrupt):
        pipeline.test([b"a"])


def test_headers_that_cannot_be_read_fail_only_those_who_ask() -> None:
    def ask(value: bytes, record: Record) -> bytes:
        return b"%d" % len(record.headers)

    pipeline = Pipeline("test", on_error="dead-letter")
    stream = pipeline.read("in")
    stream.map(lambda value, record: b"%d" % record.offset).write("offsets")
    stream.map(ask).write("headers")
    effects = effects_with_headers(pipeline, UNREADABLE)
    assert [records.topic for records in effects.outputs] == ["offsets", "test.dead-letters"]


@given(st.integers(1, RETRIES_MAX), st.integers(0, 60_000), st.integers(0, 60_000))
def test_waits_double_up_to_their_bound_and_never_overflow(retries: int, first: int, most: int) -> None:
    policy = OnError.skip().retry(retries, backoff_ms=first, backoff_max_ms=most)
    assert policy.mistakes() == []
    waits = [policy.wait_ms(retry) for retry in range(1, retries + 1)]
    assert waits[0] == min(first, most)
    assert all(wait <= most for wait in waits)
    assert all(later == min(2 * earlier, most) for earlier, later in pairwise(waits) if earlier)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_every_value_is_called_once_and_in_order_whatever_raises(numbers: list[int]) -> None:
    called: list[int] = []

    def function(number: int) -> int:
        called.append(number)
        if number == 0:
            raise ValueError
        if number == 1:
            raise StopIteration
        return -number

    results, errors = call_each(function, (numbers,))
    assert called == numbers
    assert set(errors) == {i for i, number in enumerate(numbers) if number < 2}
    assert [r for i, r in enumerate(results) if i not in errors] == [-n for n in numbers if n >= 2]
