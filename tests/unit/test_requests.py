"""Requests and answers against Kafka's message definitions, encoded and decoded by aiokafka's own types.

What we write must decode to what was meant, and to the last byte; what a broker writes must be read, and every shorter
answer must be refused.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_cases import A0, CASES, Case

from millstream.connectors.kafka.read_requests import OffsetFetchRequest
from millstream.connectors.kafka.requests import CoordinatorType, FindCoordinatorRequest
from millstream.connectors.kafka.wire import ProtocolError, Reader, Writer

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.request).__name__)


def written(request: Any) -> bytes:
    writer = Writer()
    request.write(writer)
    return writer.finish()


@every_case
def test_a_request_means_what_it_should_to_the_last_byte(case: Case) -> None:
    assert (case.key, case.version) == (case.request.API_KEY, case.request.API_VERSION)
    data = io.BytesIO(written(case.request))
    assert case.asks.decode(data) == case.asked
    assert data.read() == b""


@every_case
def test_an_answer_is_read_as_it_was_meant(case: Case) -> None:
    assert case.request.read(Reader(case.answers.encode(case.answered))) == case.read


@every_case
def test_an_answer_cut_short_at_any_byte_is_refused_or_lacks_only_its_last_tags(case: Case) -> None:
    answer = case.answers.encode(case.answered)
    for size in range(len(answer)):
        try:
            read = case.request.read(Reader(answer[:size]))
        except ProtocolError:
            continue
        # What is behind the last field that we want may be missing: it is not read at all.
        assert read == case.read


@every_case
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_answer_is_read_as_something_or_refused(case: Case, data: st.DataObject) -> None:
    answer = bytearray(case.answers.encode(case.answered))
    for _ in range(data.draw(st.integers(1, 4))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    try:
        case.request.read(Reader(bytes(answer)))
    except ProtocolError:
        pass


def test_an_answer_about_nothing_is_refused_where_one_thing_was_asked_for() -> None:
    nothing = b"\0\0\0\0" + b"\x01" + b"\0"  # throttle time, an empty array, no tags
    for request in (FindCoordinatorRequest(CoordinatorType.GROUP, "p"), OffsetFetchRequest("p", [A0])):
        with pytest.raises(ProtocolError):
            request.read(Reader(nothing))
