"""What can be said of runs with many nodes without running one."""

from __future__ import annotations

import json
import socket
from collections import Counter

import pytest

from millstream.loadgen.many_nodes import main
from millstream.loadgen.many_nodes_report import as_json, beats_table, cost_table, kills_table, percentile
from millstream.loadgen.many_nodes_run import Cost, Killed, ManyNodesResult, ManyNodesSettings
from millstream.loadgen.socket_bytes import SocketBytes, socket_bytes
from millstream.loadgen.verdict_watch import SeenVerdict
from millstream.processor.errors import SettingsError
from millstream.processor.ledger import DeadRecord


def result(*kills: Killed, mistaken: tuple[SeenVerdict, ...] = (), has_agreed: bool = True) -> ManyNodesResult:
    cost = Cost(lone_cpu=[1.0, 2.0, 4.0], shared_cpu=None, broker_cpu=20.04, sent=7000.4, received=15000, packets=120)
    return ManyNodesResult(
        nodes=10,
        mortal=4,
        seconds=30,
        cost=cost,
        gaps_ms=Counter({50: 98, 75: 2}),
        visible_ms=Counter(),
        kills=kills,
        mistaken=mistaken,
        has_agreed=has_agreed,
    )


def killed(detected_s: float | None, verdicts: int = 1) -> Killed:
    return Killed(node="m", detected_s=detected_s, verdicts=verdicts, silence_ms=255.0, threshold_ms=250.0)


def test_percentiles_are_values_that_so_many_are_at_or_below() -> None:
    histogram = Counter({10: 50, 20: 49, 900: 1})
    assert [percentile(histogram, share) for share in (0.0, 0.5, 0.51, 0.99, 1.0)] == [10, 10, 20, 20, 900]
    assert percentile(Counter(), 0.5) is None


def test_a_run_is_clean_when_each_death_has_one_verdict_and_nothing_else_has() -> None:
    wrong = SeenVerdict(1.0, 7, DeadRecord("a", "b", 251.0, 250.0, 900, 0))
    assert result(killed(0.26)).is_clean
    assert not result(killed(0.26, verdicts=2)).is_clean
    assert not result(killed(None, verdicts=0)).is_clean
    assert not result(killed(0.26), mistaken=(wrong,)).is_clean
    assert not result(killed(0.26), has_agreed=False).is_clean


def test_the_report_has_every_figure_and_survives_json() -> None:
    wrong = SeenVerdict(1.0, 7, DeadRecord("a", "b", 251.0, 250.0, 900, 0))
    run = result(killed(0.2601), killed(0.7), killed(None, verdicts=0), mistaken=(wrong,))
    report = json.loads(json.dumps(as_json(run)))
    assert report["cpu_percent_per_node"] == {
        "process_each_median": 2.0,
        "process_each": [1.0, 2.0, 4.0],
        "sharing": None,
    }
    assert report["detected_ms"] == {"count": 2, "p50": 261, "p90": 701, "p99": 701, "max": 701, "over_500": 1}
    assert report["detected_each_ms"] == [260.1, 700.0, None]
    assert report["beat_gaps_ms"] == {"count": 100, "p50": 50, "p90": 50, "p99": 75, "max": 75}
    assert report["beat_visible_ms"]["p50"] is None
    assert report["verdicts_per_kill"] == {"0": 1, "1": 2}
    assert report["mistaken"] == [{"node": "a", "by": "b", "silence_ms": 251.0, "threshold_ms": 250.0}]
    for table in (cost_table, beats_table, kills_table):
        assert table([run]).row_count == 1


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        ManyNodesSettings(nodes=(3,), seconds=0, processes=0, kills=0, hogs=-1, kill_every_s=0.1)
    assert len(raised.value.mistakes) == 6


def test_a_series_of_kills_needs_enough_nodes_that_are_known_well() -> None:
    ManyNodesSettings(nodes=(24,), kills=300)
    with pytest.raises(SettingsError, match="nodes is 12: a node is known well 12 s after it came") as raised:
        ManyNodesSettings(nodes=(12,), kills=300)
    assert "give more nodes, or kill less often" in str(raised.value)
    ManyNodesSettings(nodes=(12,), kills=300, kill_every_s=4)


@pytest.mark.parametrize("arguments", [["--nodes", "many"], ["--nodes", "2"], ["--json", "/no/such/place/x.json"]])
def test_the_command_refuses_what_cannot_be_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("many-nodes: ")


def test_the_kernel_counts_what_a_connection_carries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        two, _ = server.accept()
        with two:
            before = socket_bytes()
            one.sendall(b"x" * 1000)
            assert len(two.recv(1000, socket.MSG_WAITALL)) == 1000
            two.sendall(b"y" * 10)
            one.recv(10)
            used = socket_bytes() - before
    # Both ends are ours. What was acknowledged last may not be counted yet.
    assert used.received == 1010
    assert used.sent in (1000, 1010)
    assert used.packets_sent >= 2
    assert used + SocketBytes() == used
