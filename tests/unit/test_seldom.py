"""Trouble that lasts is said at once, and then now and then with how often it was met."""

from __future__ import annotations

import pytest

from millstream.connectors.kafka.event_log import LOG
from millstream.processor import seldom
from millstream.processor.seldom import SeldomWarning


def test_lasting_trouble_is_an_event_with_fields_every_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(seldom.time, "monotonic", lambda: now)
    warn = SeldomWarning(LOG, "broker.awaited", brokers="a:1")
    for _ in range(25):
        warn("connection refused")
        now += 1.0
    assert [record.getMessage() for record in caplog.records] == [
        f'broker.awaited brokers=a:1 reason="connection refused" times={times}' for times in (1, 10, 10)
    ]
