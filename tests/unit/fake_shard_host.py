"""A shard host without Kafka, for tests of agents and workers with real processes.

It writes what it does to a journal (one line each, appended, so that the lines of all processes have one order), and
misbehaves on request: a file in its directory that is named after a fault makes the process that meets it commit it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millstream.processor.counts import Counts
from millstream.processor.errors import RefusedError, SettingsError, StageError, UnavailableError
from millstream.processor.measures import Measures, ShardReport
from millstream.processor.shard_host import HostEvent, Prepared, ShardReleased, ShardStarted
from millstream.processor.stage_page import StagePage
from millstream.processor.stalled import Stalled

ERRORS = {
    "settings": SettingsError("cannot start", ["--brokers nowhere: no such host"]),
    "refused": RefusedError("the broker refuses user 'bob'"),
    "unavailable": UnavailableError("no broker answers at 127.0.0.1:9"),
    "stage": StageError("stage 'score' failed at payments/0/17"),
    "defect": KeyError("secret payload"),
}


def _ignore(event: HostEvent) -> None:
    pass


class FakeHost:
    def __init__(self, directory: str, shards: int, prepare: str, until: str) -> None:
        self._directory = Path(directory)
        self._shards = shards
        self._prepare = prepare
        self._until = until
        self._owned: set[int] = set()
        self._wanted: frozenset[int] = frozenset()
        self._stopping = False
        self._counts = Counts()
        self._report: Callable[[HostEvent], None] = _ignore

    async def prepare(self) -> Prepared:
        self._write("preparing")
        if self._prepare in ERRORS:
            raise ERRORS[self._prepare]
        if self._prepare == "hang":
            await asyncio.sleep(3600)
        return Prepared("fake", self._shards, requires_device=self._prepare == "requires-device")

    async def serve(self, report: Callable[[HostEvent], None], page: StagePage | None = None) -> None:  # noqa: ARG002 - no stages
        self._report = report
        (self._directory / "frozen-objects").write_text(str(gc.get_freeze_count()))
        while not self._is_done():
            await asyncio.sleep(0.01)
            self._meet_faults()
            self._counts.records_in += len(self._owned)
            self._counts.records_out += len(self._owned)

    def assign(
        self,
        shards: frozenset[int],
        stalls: Sequence[Stalled] = (),  # noqa: ARG002 - no stages
        tokens: Mapping[int, int] | None = None,  # noqa: ARG002
    ) -> None:
        self._wanted = shards
        for shard in sorted(shards - self._owned):
            self._owned.add(shard)
            self._write(f"start {shard}")
            self._report(ShardStarted(shard))
        if not self._has("hang-release"):
            for shard in sorted(self._owned - shards):
                self._release(shard)

    async def stop(self, timeout_s: float) -> None:  # noqa: ARG002 - a host that keeps its own time
        self._write("stop")
        if self._has("hang-stop"):
            await asyncio.sleep(3600)
        if self._has("block-stop"):
            time.sleep(3600)  # noqa: ASYNC251 - user code that never comes back is the point
        for shard in sorted(self._owned):
            self._release(shard)
        self._stopping = True

    def counts(self) -> Counts:
        return self._counts

    def measures(self) -> Measures:
        silent_s = 60.0 if self._has("silent") else 0.0
        reports = [ShardReport(shard, "running", silent_s, 0.1, [7]) for shard in sorted(self._owned)]
        return Measures(topics=["events"], shards=reports)

    def _is_done(self) -> bool:
        if self._until == "caught-up" and self._owned and self._has("caught-up"):
            for shard in sorted(self._owned):
                self._release(shard)
            self._stopping = True
        return self._stopping

    def _release(self, shard: int) -> None:
        self._owned.discard(shard)
        self._write(f"release {shard}")
        self._report(ShardReleased(shard))

    def _meet_faults(self) -> None:
        for shard in self._owned:
            if self._take(f"crash-{shard}") or self._has(f"poison-{shard}"):
                self._write("crash")
                os.kill(os.getpid(), signal.SIGKILL)
            if self._take(f"exit-{shard}"):
                sys.exit(0)
            for name, error in ERRORS.items():
                if self._has(f"{name}-{shard}"):
                    raise ExceptionGroup("tasks of the shards", [error])

    def _has(self, fault: str) -> bool:
        return (self._directory / fault).exists()

    def _take(self, fault: str) -> bool:
        """Whether the fault was asked for, by one process once."""
        try:
            (self._directory / fault).unlink()
        except FileNotFoundError:
            return False
        return True

    def _write(self, event: str) -> None:
        with (self._directory / "journal").open("a") as journal:
            journal.write(f"{os.getpid()} {event}\n")


def make(directory: str, shards: int, prepare: str = "works", until: str = "stopped") -> FakeHost:
    return FakeHost(directory, shards, prepare, until)


def make_slowly(directory: str) -> FakeHost:
    """User code that takes for ever to load, and does not listen meanwhile."""
    (Path(directory) / f"loading-{os.getpid()}").touch()
    time.sleep(3600)
    raise AssertionError


def make_badly(directory: str) -> FakeHost:
    raise ValueError("app.py line 3: no such table")
