"""`millstream status` beside two real nodes, one of which dies; and where there is nothing to be seen."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from outside import Outside

from millstream.connectors.kafka.onlooker import Sight, membership_log, watch
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.node_process import NodeProcess
from millstream.processor import Pipeline
from millstream.processor.cli import main

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

PATIENCE_S = 60.0
SHARDS = 4


def status(outside: Outside, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", name, "--json", f"--brokers={outside.bootstrap}"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def eventually(look: Callable[[], Any], is_right: Callable[[Any], bool], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not is_right(found := look()):
        assert time.monotonic() < deadline, f"never happened: {what}; last seen: {found}"
        time.sleep(0.05)
    return found


def page(log: Path, name: str) -> str:
    """What the node that writes this log answers."""
    address = log.read_text().split("http.listening address=")[1].split()[0]
    with urllib.request.urlopen(f"http://{address}{name}", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def metric(log: Path, start: str) -> float:
    return sum(float(line.split()[-1]) for line in page(log, "/metrics").splitlines() if line.startswith(start))


def test_two_nodes_and_the_death_of_one_are_seen_from_outside_and_from_the_other(
    outside: Outside, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = outside.topic("in", partitions=SHARDS), outside.topic("out"), outside.unique("seen")
    app = tmp_path / "app.py"
    app.write_text(
        "from millstream.processor import Pipeline\n"
        f'pipeline = Pipeline("{name}", shards={SHARDS})\n'
        f'pipeline.read("{source}").map(lambda value: value).write("{target}")\n'
    )
    outside.load(source, 400)
    with ExitStack() as stack:
        nodes, logs = {}, {}
        for node, zone in (("left", "a"), ("right", "b")):
            logs[node] = tmp_path / f"{node}.log"
            arguments = [str(app), f"--brokers={outside.bootstrap}", f"--node-name={node}", f"--zone={zone}"]
            nodes[node] = stack.enter_context(NodeProcess(arguments, os.environ, logs[node]))

        def is_whole(found: dict[str, Any]) -> bool:
            owners = [shard["owner"] for shard in found["shards"] if shard["state"] == "owned"]
            return len(found["nodes"]) == 2 and len(owners) == SHARDS and len(set(owners)) == 2

        eventually(
            lambda: [path.read_text().count("shards.assigned") for path in logs.values()], all, "both nodes have shards"
        )
        found = eventually(lambda: status(outside, name, capsys), is_whole, "both nodes have shards")
        by_name = {row["name"]: row for row in found["nodes"]}
        assert {node: (row["state"], row["zone"], row["shards"]) for node, row in by_name.items()} == {
            "left": ("in", "a", 2),
            "right": ("in", "b", 2),
        }
        assert all(row["beat_age_ms"] < 400 and row["since_s"] < PATIENCE_S for row in found["nodes"])
        assert [row["partitions"] for row in found["shards"]] == [[f"{source}-{shard}"] for shard in range(SHARDS)]
        assert all(row["standby"] is not None and row["standby"] != row["owner"] for row in found["shards"])
        assert [row["state"] for row in found["workers"]] == ["ready", "ready"]
        assert found["verdicts"] == []
        eventually(lambda: json.loads(page(logs["right"], "/readyz")), lambda it: it["ready"], "the node is ready")

        # The records that come while the node is dead wait for the takeover.
        seen: list[Sight] = []
        watching = threading.Thread(target=watch_for, args=(outside, name, seen), daemon=True)
        watching.start()
        eventually(lambda: len(seen), lambda count: count > 0, "the live view has begun")
        nodes["left"].kill()
        outside.load(source, 400, first_id=400)
        takeover = 'millstream_takeover_seconds_count{cause="node"}'
        eventually(lambda: metric(logs["right"], takeover), lambda count: count == 2, "both shards are taken over")
        after = status(outside, name, capsys)
        (survivor,) = after["nodes"]
        (verdict,) = after["verdicts"]
        assert (survivor["name"], survivor["shards"]) == ("right", SHARDS)
        assert (verdict["node"], verdict["by"]) == (by_name["left"]["node"], survivor["node"])
        assert verdict["silence_ms"] >= verdict["threshold_ms"] > 0
        assert all(row["standby"] is None for row in after["shards"])

        own = json.loads(page(logs["right"], "/status"))
        assert own["node"]["id"] == survivor["node"]
        assert (own["node"]["phase"], own["node"]["doubt"], own["node"]["verdicts_written"]) == ("in", None, 1)
        assert own["membership"]["shards"] == [
            {key: row[key] for key in row if key not in ("lag", "offsets_per_s")} for row in after["shards"]
        ]
        assert metric(logs["right"], "millstream_verdicts_read_total") == 1
        assert metric(logs["right"], "millstream_beats_heard_total") > 0
        assert "event=shard.taken_over" in logs["right"].read_text()

        watching.join(PATIENCE_S)
        told = [(event.what, event.text) for event in seen[-1].story.events]
        assert any(what == "found dead" and by_name["left"]["node"] in text for what, text in told), told
        assert any(what == "taken over" and "after its last beat" in text for what, text in told)
        assert main(["status", name, f"--brokers={outside.bootstrap}"]) == 0
        printed = capsys.readouterr().out
        assert f"1 of 1 nodes heard, {SHARDS} of {SHARDS} shards owned" in " ".join(printed.split())


def watch_for(outside: Outside, name: str, seen: list[Sight]) -> None:
    """A live view, for as long as the test's fault takes."""
    kafka = KafkaSettings(brokers=(outside.bootstrap,))
    asyncio.run(watch(kafka, name, seen.append, refresh_s=0.1, seconds=8))


async def test_a_pipeline_that_is_not_there_is_an_error_that_says_so(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, ["status", "nobody", f"--brokers={outside.bootstrap}"]) == 2
    assert "there is no pipeline 'nobody' in this cluster" in capsys.readouterr().err


async def test_a_stopped_pipeline_has_shards_that_nobody_owns_and_a_newer_ledger_is_refused(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = outside.topic("in", partitions=2), outside.topic("out"), outside.unique("p")
    made = Pipeline(name, shards=2)
    made.read(source).write(target)
    await made.run(brokers=outside.bootstrap, until="caught-up", timeout_s=60)
    found = await asyncio.to_thread(status, outside, name, capsys)
    assert [row["state"] for row in found["shards"]] == ["unowned"] * 2
    assert [row["lag"] for row in found["shards"]] == [0, 0]
    assert found["nodes"] == []

    log = membership_log(KafkaSettings(brokers=(outside.bootstrap,)), name)
    await log.connect()
    await log.append([b'{"type":"join","node":"n","version":2}'])
    log.close()
    assert await asyncio.to_thread(main, ["status", name, f"--brokers={outside.bootstrap}"]) == 1
    assert "version 2; this millstream knows version 1: upgrade it" in " ".join(capsys.readouterr().err.split())


def test_a_broker_that_is_away_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "p", "--brokers=127.0.0.1:1", "--connect-timeout-ms=200"]) == 1
    assert "no broker of 127.0.0.1:1 could be reached within 0.2 s" in " ".join(capsys.readouterr().err.split())
