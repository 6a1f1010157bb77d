"""Programs that embed the same pipeline are nodes like any others: they share the shards and take over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from outside import Outside

from millstream.loadgen.node_process import NodeProcess
from millstream.processor import Pipeline
from millstream.processor.ledger import DeadRecord, JoinRecord, LeaveRecord, LedgerRecord, decode
from millstream.processor.names import Names

pytestmark = pytest.mark.broker

PATIENCE_S = 60.0
SHARDS = 4


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "millstream-node"] == []


class Scene:
    """One pipeline, its topics, and as many copies of its program as a test wants."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.source, self.target = outside.topic("in", partitions=8), outside.topic("out", partitions=8)
        self.name = outside.unique("shared")
        self._loaded = 0

    def program(self, function: Callable[[bytes], bytes]) -> Pipeline:
        pipeline = Pipeline(self.name, shards=SHARDS)
        pipeline.read(self.source).map(function).write(self.target)
        return pipeline

    async def load(self, events: int = 500) -> None:
        # Keys differ from load to load, so that every partition has some of each.
        first_id, self._loaded = self._loaded, self._loaded + events
        await asyncio.to_thread(self.outside.load, self.source, events, first_id=first_id, keys=200)

    async def until_all_is_out(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(await asyncio.to_thread(self.outside.read, self.target)) < self._loaded:
            assert time.monotonic() < deadline, "not all of it was ever committed"

    @property
    def loaded(self) -> int:
        return self._loaded

    def ledger(self, kind: type) -> list[LedgerRecord]:
        records = [decode(m.value or b"") for m in self.outside.read(Names.of(self.name).ledger)]
        return [record for record in records if isinstance(record, kind)]

    def assert_clean(self) -> None:
        verdict = self.outside.judge(self.source, self.target, group=self.name)
        assert verdict.is_clean, verdict.as_json()


class Counter:
    """A stage that passes everything on and counts it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, value: bytes) -> bytes:
        self.count += 1
        return value


async def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.01)


async def test_two_programs_share_the_shards_and_the_one_that_stays_takes_over(outside: Outside) -> None:
    scene, first, second = Scene(outside), Counter(), Counter()
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(scene.program(first).run(brokers=outside.bootstrap, node_name="first"))
        staying = tasks.create_task(scene.program(second).run(brokers=outside.bootstrap, zone="z", labels=["x"]))
        while not (first.count and second.count):
            await scene.load()
        leaving.cancel()
        await asyncio.wait({leaving})
        alone_from, told = first.count, second.count
        await scene.load()
        await eventually(lambda: second.count >= told + 500, "the one that stays has all shards")
        assert first.count == alone_from
        await scene.until_all_is_out()
        staying.cancel()
    scene.assert_clean()
    assert {(join.name, join.zone, tuple(join.labels)) for join in scene.ledger(JoinRecord)} >= {("first", "", ())}  # type: ignore[union-attr]
    assert len(scene.ledger(LeaveRecord)) >= 2
    assert scene.ledger(DeadRecord) == []


async def test_a_program_beside_a_node_of_processes(outside: Outside, tmp_path: Path) -> None:
    scene, here = Scene(outside), Counter()
    app = tmp_path / "app.py"
    app.write_text(
        "from millstream.processor import Pipeline\n"
        f"pipeline = Pipeline({scene.name!r}, shards={SHARDS})\n"
        f"pipeline.read({scene.source!r}, bytes).map(lambda value: value).write({scene.target!r})\n"
    )
    node = NodeProcess([str(app), f"--brokers={outside.bootstrap}"], os.environ, tmp_path / "log")
    await asyncio.to_thread(node.start)
    try:
        await eventually(lambda: "shard.started" in node.log_end(), "the node has shards")
        running = asyncio.create_task(scene.program(here).run(brokers=outside.bootstrap))
        while not here.count:
            await scene.load()
        await scene.load()
        await scene.until_all_is_out()
        assert here.count < scene.loaded, "the node has shards too"
        await asyncio.to_thread(node.kill)
        before = here.count
        await scene.load()
        await eventually(lambda: here.count >= before + 500, "the program has the dead node's shards")
        await scene.until_all_is_out()
        running.cancel()
        await asyncio.wait({running})
    finally:
        await asyncio.to_thread(node.stop)
    scene.assert_clean()
    assert len(scene.ledger(DeadRecord)) == 1


async def test_code_that_holds_up_its_loop_is_not_taken_for_dead(outside: Outside) -> None:
    scene, here, has_slept = Scene(outside), Counter(), threading.Event()

    def sleepy(value: bytes) -> bytes:
        if not has_slept.is_set():
            time.sleep(2)
            has_slept.set()
        return value

    sleeping = asyncio.create_task(asyncio.to_thread(_run_until, scene, sleepy, stop := threading.Event()))
    running = asyncio.create_task(scene.program(here).run(brokers=outside.bootstrap))
    try:
        while not (has_slept.is_set() and here.count):
            await scene.load()
        await scene.until_all_is_out()
    finally:
        stop.set()
        running.cancel()
        await asyncio.wait({running, sleeping})
    sleeping.result()
    scene.assert_clean()
    assert scene.ledger(DeadRecord) == []


def _run_until(scene: Scene, function: Callable[[bytes], bytes], stop: threading.Event) -> None:
    """A program of its own, in the thread that calls this."""

    async def run() -> None:
        running = asyncio.create_task(scene.program(function).run(brokers=scene.outside.bootstrap))
        await asyncio.to_thread(stop.wait, PATIENCE_S)
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()

    asyncio.run(run())


async def test_a_run_with_an_end_beside_a_node_that_goes_on(outside: Outside) -> None:
    scene, there, here = Scene(outside), Counter(), Counter()
    await scene.load()
    async with asyncio.TaskGroup() as tasks:
        going_on = tasks.create_task(scene.program(there).run(brokers=outside.bootstrap))
        await eventually(lambda: there.count >= 500, "the node is at work")
        ended = await scene.program(here).run(brokers=outside.bootstrap, until="caught-up", timeout_s=PATIENCE_S)
        assert ended.counts.records_in == here.count
        await scene.load()
        await eventually(lambda: there.count + here.count >= scene.loaded, "the shards are back")
        await scene.until_all_is_out()
        going_on.cancel()
    scene.assert_clean()
    assert scene.ledger(DeadRecord) == []


async def test_two_runs_with_an_end_do_everything_between_them(outside: Outside) -> None:
    scene = Scene(outside)
    await scene.load(2000)
    runs = [
        scene.program(Counter()).run(brokers=outside.bootstrap, until="caught-up", timeout_s=PATIENCE_S)
        for _ in range(2)
    ]
    results = await asyncio.gather(*runs)
    assert sum(result.counts.records_in for result in results) == 2000
    scene.assert_clean()


PROGRAM = """
import asyncio, sys
from millstream.processor import Pipeline
brokers, name, source, target = sys.argv[1:]
pipeline = Pipeline(name, shards=4)
pipeline.read(source).map(lambda value: print("started", flush=True) or value).write(target)
try:
    asyncio.run(pipeline.run(brokers=brokers))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


async def test_an_interrupt_ends_a_program_with_a_goodbye_and_nothing_on_its_lips(outside: Outside) -> None:
    scene = Scene(outside)
    await scene.load(10)
    arguments = [outside.bootstrap, scene.name, scene.source, scene.target]
    program = subprocess.Popen(  # noqa: ASYNC220 - it takes a moment, and nothing else runs here
        [sys.executable, "-W", "error", "-X", "dev", "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "started\n"
        program.send_signal(signal.SIGINT)
        printed, complaints = await asyncio.to_thread(program.communicate, timeout=PATIENCE_S)
    finally:
        program.kill()
        program.wait()
    assert printed.splitlines()[-1] == "interrupted", complaints
    assert "Warning" not in complaints
    assert "Traceback" not in complaints
    assert len(scene.ledger(LeaveRecord)) == 1
