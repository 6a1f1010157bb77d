"""Eight nodes' agents on a real broker: they agree, one is killed, and it is found once and by no mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.connectors.kafka.pytest_broker import Broker
from millstream.connectors.kafka.settings import KafkaSettings, split_brokers
from millstream.loadgen.many_nodes_report import as_json
from millstream.loadgen.many_nodes_run import ManyNodesRun, ManyNodesSettings
from millstream.processor.timings import Timings

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

# Windows that fill in two seconds, and patience with a machine that runs other tests: what is short on a quiet one is
# for `make many-nodes` to say.
TIMINGS = Timings(window=40, silence_min_s=1.5, silence_max_s=2.0, newcomer_s=3.0, hold_s=1.0, reconnect_max_s=1.0)


def test_nodes_agree_and_find_one_that_was_killed(broker: Broker, unique: Callable[[str], str]) -> None:
    settings = ManyNodesSettings(nodes=(8,), seconds=2, processes=1, timings=TIMINGS)
    kafka = KafkaSettings(brokers=split_brokers(broker.bootstrap))
    result = ManyNodesRun(settings, 8, kafka, None, unique("many"), lambda _: None).run()
    report = as_json(result)
    assert result.has_agreed, report
    assert [killed.verdicts >= 1 for killed in result.kills] == [True], report
    assert not result.mistaken, report
    (killed,) = result.kills
    assert killed.detected_s is not None
    assert killed.threshold_ms >= 1500
    assert report["mistaken"] == []
    # Twenty beats a second of about two hundred bytes, and everyone reads those of all.
    assert 1000 < result.cost.sent < 50_000
    assert 3000 < result.cost.received < 200_000
    assert result.gaps_ms.total() > 100
    assert result.visible_ms.total() > 10
    assert len(result.cost.lone_cpu) == 4
