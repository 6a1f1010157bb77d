"""A log line is one line, says when, where and what, and cannot be broken by what is in its fields."""

from __future__ import annotations

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.processor.event_log import EventLog, KeyValueFormatter


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [KeyValueFormatter().format(record) for record in caplog.records]


def test_a_line_has_time_level_logger_event_and_fields_in_order(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(logging.getLogger("millstream.test"), worker=3).bind(incarnation=2)
    with caplog.at_level(logging.INFO, "millstream.test"):
        log.debug("not.wanted")
        log.warning("worker.died", how="it was ended by SIGKILL", lived_s=0.123456789, shards=[1, 2])
    (line,) = lines_of(caplog)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING millstream\.test event=worker\.died worker=3 incarnation=2 "
        r'how="it was ended by SIGKILL" lived_s=0\.123457 shards="\[1, 2\]"',
        line,
    )


def test_other_formatters_show_the_fields_and_ours_shows_the_lines_of_others(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millstream.test"):
        EventLog(logging.getLogger("millstream.test")).info("topics.created", topics="a,b", why="they were missing")
        logging.getLogger("millstream.test").info("%d plain words", 3)
    ours, plain = caplog.records
    assert logging.Formatter("%(message)s").format(ours) == 'topics.created topics=a,b why="they were missing"'
    assert KeyValueFormatter().format(plain).endswith('event="3 plain words"')


@given(st.text())
def test_whatever_a_field_holds_the_line_stays_one_line_and_the_field_can_be_read_back(text: str) -> None:
    records: list[logging.LogRecord] = []
    logger = logging.Logger("millstream.test")
    logger.addFilter(lambda record: bool(records.append(record)))
    EventLog(logger).info("event", field=text, last="end")
    line = KeyValueFormatter().format(records[0])
    assert len(line.splitlines()) == len(records[0].getMessage().splitlines()) == 1
    written = line.split(" field=", 1)[1].removesuffix(" last=end")
    assert (json.loads(written) if written.startswith('"') else written) == text
