"""A pipeline's membership seen from outside: the ledger read and the beats heard, with no word to any node.

It says nothing itself: nobody takes it for a node, and nothing is written.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.connectors.kafka.lag import LagReader, PartitionLag
from millstream.connectors.kafka.membership_log import KafkaMembershipLog
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor.beats import decode_beat
from millstream.processor.errors import PositionLostError, RefusedError, UnavailableError
from millstream.processor.ledger import decode
from millstream.processor.ledger_reader import LedgerReader
from millstream.processor.ledger_story import LedgerStory
from millstream.processor.membership import Membership
from millstream.processor.membership_log import LedgerPage, MembershipLog
from millstream.processor.names import Names
from millstream.processor.status_view import Standbys, StatusView, status_view
from millstream.processor.together import first_error

LISTEN_S: Final = 1.0
LAG_INTERVAL_S: Final = 1.0
_LEDGER_TIMEOUT_S: Final = 10.0


class Flow(NamedTuple):
    """How a shard gets on: offsets to the end of its committed records, and offsets a second; None: not known."""

    lag: int | None
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen at one moment. `flows` are by shard; `trouble` is why the log does not answer, or None."""

    view: StatusView
    flows: Mapping[int, Flow]
    story: LedgerStory
    trouble: str | None


class Onlooker:
    """Reads on while `run` runs. `caught_up` is set once the ledger was read to its end."""

    def __init__(self, log: MembershipLog) -> None:
        self._log = log
        self._reader = LedgerReader()
        self._membership = Membership()
        self._standbys = Standbys()
        self._heard: dict[str, float] = {}
        self._heard_until: float | None = None
        self._story = LedgerStory()
        self._trouble: str | None = None
        self.caught_up = asyncio.Event()
        self.heard_first = asyncio.Event()

    @property
    def membership(self) -> Membership:
        """As the ledger has it."""
        return self._membership

    def sight(self, flows: Mapping[int, Flow]) -> Sight:
        """Everything as it is now."""
        until = self._heard_until
        ages_s = {} if until is None else {node: until - at for node, at in self._heard.items()}
        standby = self._standbys.of(self._membership)
        view = status_view(self._membership, ages_s, standby, wall_ms=time.time() * 1000)
        return Sight(view, flows, self._story, self._trouble)

    async def run(self) -> None:
        """Read until cancelled. Raises RefusedError for a ledger that cannot be understood, or without permission."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._listen())

    async def _follow(self) -> None:
        offset: int | None = None
        while True:
            try:
                page = await self._log.follow(offset)
            except UnavailableError as error:
                self._trouble = str(error)
            except PositionLostError:
                self._reader, offset = LedgerReader(), None
            else:
                self._trouble = None
                offset = page.next_offset
                self._read(page)

    def _read(self, page: LedgerPage) -> None:
        # What was there before we came has no time that we could tell.
        wall_ms = time.time() * 1000 if self.caught_up.is_set() else None
        for entry in page.entries:
            before = self._membership
            membership = self._reader.read(page.log_start, [entry])
            if membership is not None:
                self._membership = membership
                self._story.read(before, membership, entry.offset, decode(entry.value), wall_ms)
        if page.caught_up:
            if self._reader.read(page.log_start, []) is None:
                raise RefusedError(
                    f"the ledger begins at offset {page.log_start} and has no snapshot of what was there before: "
                    "somebody else deleted its records, and no node can join any more; use another pipeline name"
                )
            self.caught_up.set()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                page = await self._log.read_beats()
            except UnavailableError:
                continue
            now = loop.time()
            for value in page.values:
                if (beat := decode_beat(value)) is not None:
                    self._heard[beat.node] = now
            if not page.is_behind:
                # Silence counts up to here only: what the log did not tell us is no silence of a node.
                self._heard_until = now
                self.heard_first.set()
                self._forget(now)

    def _forget(self, now: float) -> None:
        nodes = self._membership.nodes
        self._heard = {node: at for node, at in self._heard.items() if node in nodes or now - at < _LEDGER_TIMEOUT_S}


class Flows:
    """Lag and throughput of each shard, from committed offsets and ends."""

    def __init__(self, reader: LagReader, shards: int) -> None:
        self._reader = reader
        self._shards = shards
        self._before: tuple[float, Sequence[PartitionLag]] | None = None
        self.last: Mapping[int, Flow] = {}

    async def keep_looking(self) -> None:
        """Every second, until cancelled; while no broker answers there is nothing to be told."""
        while True:
            try:
                await self.look()
            except UnavailableError:
                self.last = {}
            await asyncio.sleep(LAG_INTERVAL_S)

    async def look(self) -> Mapping[int, Flow]:
        """As it is now; throughput since the last look."""
        rows, now = await self._reader.read(with_ages=False), asyncio.get_running_loop().time()
        before, self._before = self._before, (now, rows)
        elapsed_s = None if before is None else now - before[0]
        self.last = flows_of(rows, () if before is None else before[1], elapsed_s, self._shards)
        return self.last


def flows_of(
    rows: Sequence[PartitionLag], before: Sequence[PartitionLag], elapsed_s: float | None, shards: int
) -> dict[int, Flow]:
    """By shard: what is behind, and how fast the committed offsets grew in these seconds."""
    old = {(row.topic, row.partition): row.committed for row in before}
    flows = {}
    for shard in range(shards):
        mine = [row for row in rows if row.partition % shards == shard]
        lags = [row.lag for row in mine if row.lag is not None]
        steps = [
            row.committed - at
            for row in mine
            if row.committed is not None and (at := old.get((row.topic, row.partition))) is not None
        ]
        per_s = max(0, sum(steps)) / elapsed_s if steps and elapsed_s else None
        flows[shard] = Flow(sum(lags) if len(lags) == len(mine) and mine else None, per_s)
    return flows


def membership_log(kafka: KafkaSettings, pipeline: str) -> KafkaMembershipLog:
    """The way to a pipeline's ledger and beats."""
    names = Names.of(pipeline)
    return KafkaMembershipLog(kafka, ledger=names.ledger, beats=names.beats)


async def look_once(kafka: KafkaSettings, pipeline: str, *, listen_s: float = LISTEN_S) -> Sight:
    """Read the ledger and listen for so long.

    Raises SettingsError where there is no such pipeline, RefusedError for a ledger that a newer millstream wrote, and
    UnavailableError where no broker answers, or the ledger could not be read in time.
    """
    lags, log = LagReader(kafka, pipeline), membership_log(kafka, pipeline)
    try:
        flows = Flows(lags, (await lags.connect()).shards or 1)
        await log.connect()
        async with asyncio.TaskGroup() as tasks:
            onlooker = Onlooker(log)
            reading = tasks.create_task(onlooker.run())
            await caught_up(onlooker, pipeline)
            await flows.look()
            await asyncio.sleep(listen_s)
            found = await flows.look()
            reading.cancel()
        return onlooker.sight(found)
    except BaseExceptionGroup as group:
        raise first_error(group) from group
    finally:
        log.close()
        lags.close()


async def watch(
    kafka: KafkaSettings, pipeline: str, show: Callable[[Sight], None], *, refresh_s: float, seconds: float | None
) -> None:
    """Call `show` again and again, for so long (None: until cancelled). Raises as `look_once` does."""
    lags, log = LagReader(kafka, pipeline), membership_log(kafka, pipeline)
    try:
        flows = Flows(lags, (await lags.connect()).shards or 1)
        await log.connect()
        async with asyncio.TaskGroup() as tasks:
            onlooker = Onlooker(log)
            company = [tasks.create_task(onlooker.run()), tasks.create_task(flows.keep_looking())]
            await caught_up(onlooker, pipeline)
            loop = asyncio.get_running_loop()
            until = math.inf if seconds is None else loop.time() + seconds
            while loop.time() < until:
                show(onlooker.sight(flows.last))
                await asyncio.sleep(refresh_s)
            for task in company:
                task.cancel()
    except BaseExceptionGroup as group:
        raise first_error(group) from group
    finally:
        log.close()
        lags.close()


async def caught_up(onlooker: Onlooker, pipeline: str) -> None:
    """Until the ledger is read and somebody, or a second, was heard. Raises UnavailableError where that takes long."""
    try:
        async with asyncio.timeout(_LEDGER_TIMEOUT_S):
            await onlooker.caught_up.wait()
    except TimeoutError as error:
        why = onlooker.sight({}).trouble or "it answers too slowly"
        raise UnavailableError(
            f"the ledger of {pipeline!r} could not be read within {_LEDGER_TIMEOUT_S:g} s: {why}"
        ) from error
    try:
        async with asyncio.timeout(LISTEN_S):
            await onlooker.heard_first.wait()
    except TimeoutError:
        # Nobody beats, or the topic for it is gone: every node will be shown as silent, which is what is seen.
        pass
