"""`make load-test` on a real broker: small rates, all processes, a report with a picture."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from millstream.connectors.kafka.pytest_broker import Broker
from millstream.loadgen.load_case import WARM_UP_RATE_MIN
from millstream.loadgen.load_test import main

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("length", [["--seconds", "2"], ["--soak-minutes", "0.04"]])
def test_a_load_test_judges_each_event_and_reports_every_process(
    broker: Broker, tmp_path: Path, length: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    flags = ["--brokers", broker.bootstrap, "--rates", "2000", "--warm-up-s", "0.5", "--json", str(report)]
    assert main([*flags, *length]) == 0
    (rate,) = orjson.loads(report.read_bytes())["rates"]
    assert rate["clean"] is True
    assert (rate["lost"], rate["doubled"], rate["reached"]) == (0, 0, None)
    assert rate["events"] >= 4000
    assert 0 < rate["latency_ms_p50"] <= rate["latency_ms_p9999"] <= rate["latency_ms_max"]
    assert set(rate["processes"]) == {"worker", "agent", "generator", "judge"}
    assert sum(moment["events"] for moment in rate["timeline"]) == rate["events"] - 0.5 * WARM_UP_RATE_MIN
    assert (tmp_path / "report-2000.svg").read_text().startswith("<svg")
    assert "from intended send" in capsys.readouterr().out
