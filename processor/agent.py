"""The node's agent: starts worker processes, takes part in the membership, and answers the world's questions.

It decides nothing itself: what happens goes to the `Supervisor` and, in `Participation`, to the `Member`, and what they
answer is carried out. It runs no user code and loads none of the heavy libraries, so that nothing can delay it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgspec

from millstream.processor.actions import Action, Announce, Depart, Gone, Kill, Leaves, LetGo, Outcome, Send, Spawn
from millstream.processor.child import Child, Exit
from millstream.processor.control import Progress, Ready, Start, ToAgent
from millstream.processor.device_desk import NodeDevices
from millstream.processor.errors import RefusedError
from millstream.processor.event_log import EventLog
from millstream.processor.http import HttpServer, Page, PageMaker
from millstream.processor.membership_log import MembershipLog
from millstream.processor.membership_measures import MembershipMeasures, MemberView
from millstream.processor.node_settings import NodeSettings
from millstream.processor.offload_report import DeviceLeased, DeviceRefused, DeviceReturned, DeviceWanted, OffloadReport
from millstream.processor.participation import NodePlace, Participation
from millstream.processor.precedence import Precedence
from millstream.processor.shard_host import ShardCommitted, ShardRestarted
from millstream.processor.stage_watch import LOOK_INTERVAL_S, StageWatch
from millstream.processor.stalled import Stalled
from millstream.processor.supervision import Supervisor
from millstream.processor.telemetry import METRICS_CONTENT_TYPE, Telemetry
from millstream.processor.together import first_error
from millstream.processor.totals import Totals

_log: Final = EventLog(logging.getLogger("millstream.node"))


@dataclass(frozen=True, slots=True)
class HostFactory:
    """How each worker makes its host: `reference` (`module:function`) called with `arguments` by keyword.

    The arguments must survive JSON. They may hold secrets: they go through the control channel, and `repr` hides them.
    """

    reference: str
    arguments: dict[str, Any] = field(repr=False)


MembershipLogs = Callable[[str], MembershipLog]
"""Makes, by a pipeline's name, the node's way to its ledger and beats."""


class Agent:
    """Runs a node. `listener`, where given, gets the HTTP pages; `log_level` is the workers'.

    `precedence` is what this process has among others, for those who ask.
    """

    def __init__(
        self,
        settings: NodeSettings,
        factory: HostFactory,
        place: NodePlace,
        membership_logs: MembershipLogs,
        *,
        listener: socket.socket | None = None,
        log_level: str = "info",
        precedence: Precedence = Precedence.ORDINARY,
        devices: NodeDevices | None = None,
    ) -> None:
        self._devices = devices
        self._requires_device = False
        self._unannounced: list[Announce] = []
        self._precedence = precedence
        self._settings = settings
        self._factory = factory
        self._place = place
        self._membership_logs = membership_logs
        self._participation: Participation | None = None
        self._taking_part: asyncio.Task[None] | None = None
        self._listener = listener
        self._log_level = log_level
        self._supervisor = Supervisor(settings)
        self._totals = Totals()
        self._measures = MembershipMeasures()
        self._telemetry = Telemetry(self._supervisor, self._totals, self._now, self._measures, self._member_view)
        self._children: dict[int, Child] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._stage_watches: dict[int, StageWatch] = {}
        self._stops: deque[int | None] = deque()
        self._wake = asyncio.Event()
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> Outcome:
        """Run until the work is complete, somebody asks for a stop, or nothing more can be done.

        No worker process is left when this returns or raises, save one that the kernel cannot end.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self._listener is not None:
                await stack.enter_async_context(self._pages(self._listener))
            await stack.enter_async_context(self._tasks)
            serving = None if self._devices is None else self._tasks.create_task(self._devices.run(self._tell_worker))
            self._perform(self._supervisor.start(self._now()))
            looking = self._tasks.create_task(self._watch_stages())
            outcome = await self._watch_clock()
            looking.cancel()
            if serving is not None:
                serving.cancel()
            if self._taking_part is not None:
                self._taking_part.cancel()
            for watch in self._watches.values():
                watch.cancel()
        return outcome

    def request_stop(self, signal_number: int | None = None) -> None:
        """Drain and end; asking again with a signal cuts that short. The loop's signal handlers may call this."""
        self._stops.append(signal_number)
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """What `/status` answers."""
        status = self._telemetry.status()
        status["precedence"] = self._precedence.value
        status["devices"] = [] if self._devices is None else self._devices.status()
        for worker in status["workers"]:
            child = self._children.get(worker["worker"])
            worker["pid"] = child.pid if child else None
        return status

    # -- what happens -------------------------------------------------------------------------------------------

    async def _watch_clock(self) -> Outcome:
        while (outcome := self._supervisor.outcome) is None:
            self._wake.clear()
            while self._stops:
                self._perform(self._supervisor.stop(self._now(), self._stops.popleft()))
            self._perform(self._supervisor.tick(self._now()))
            if self._supervisor.outcome is None:
                await self._sleep_until(self._supervisor.next_deadline())
        return outcome

    async def _sleep_until(self, deadline: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()

    def _heard(self, child: Child, message: ToAgent) -> None:
        if isinstance(message, Progress):
            self._totals.progress(child.start.worker, message, self._now())
            self._measures.reported(message.measures.shards)
        if isinstance(message, OffloadReport):
            self._totals.offloaded(child.start.worker, message)
        if self._devices is not None and isinstance(message, DeviceWanted | DeviceReturned):
            self._devices.heard(child.start.worker, message)
        if isinstance(message, ShardCommitted):
            self._measures.first_commit(self._now(), child.start.worker, message.shard)
        if isinstance(message, ShardRestarted):
            self._measures.restarted(message.reason)
        if isinstance(message, Ready):
            self._stage_watches[child.start.worker] = StageWatch(message.watch_plan)
            self._requires_device = message.requires_device
        self._perform(self._supervisor.received(child.start.worker, message, self._now()))
        self._wake.set()

    def _gone(self, child: Child, exit_: Exit) -> None:
        worker = child.start.worker
        del self._children[worker], self._watches[worker]
        self._stage_watches.pop(worker, None)
        self._totals.gone(worker)
        if self._devices is not None:
            self._devices.gone(worker)
        self._perform(self._supervisor.exited(worker, exit_.text, is_clean=exit_.is_clean, now=self._now()))
        self._wake.set()

    async def _watch_stages(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for worker, watch in list(self._stage_watches.items()):
                child = self._children[worker]
                if (page := child.page) is None:
                    continue
                overdue = watch.look(self._now(), page.look(), page.ranges, is_stopped=child.is_stopped)
                if overdue is not None:
                    self._perform(self._supervisor.stalled(worker, overdue))
                    self._wake.set()

    def _tell_worker(self, worker: int, news: DeviceLeased | DeviceRefused) -> None:
        child = self._children.get(worker)
        if child is not None:
            child.send_nowait(news)

    # -- what is done -------------------------------------------------------------------------------------------

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Spawn(worker, incarnation):
                    self._spawn(worker, incarnation)
                case Send(worker, message):
                    self._children[worker].send_nowait(message)
                case Announce() | Leaves() | LetGo() | Gone() | Depart():
                    self._tell_membership(action)
                case Kill(worker, shows_stack):
                    if shows_stack:
                        self._children[worker].show_stack_and_kill()
                    else:
                        self._children[worker].kill()

    def _tell_membership(self, action: Announce | Leaves | LetGo | Gone | Depart) -> None:
        part = self._participation
        if part is None and isinstance(action, Announce):
            part = self._take_part()
        if part is None:
            return
        if isinstance(action, Leaves | Gone):
            self._unannounced = [held for held in self._unannounced if held.worker != action.worker]
        match action:
            case Announce(worker, incarnation):
                if self._lacks_device():
                    self._unannounced.append(action)
                else:
                    part.worker_ready(worker, incarnation)
            case Leaves(worker):
                part.worker_leaving(worker)
            case LetGo(worker, shard):
                part.shard_released(worker, shard)
            case Gone(worker, incarnation, why, stalls):
                part.worker_gone(worker, incarnation, why, stalls)
            case Depart():
                part.depart()

    def _lacks_device(self) -> bool:
        """Whether the pipeline requires a device and none is up here: then no shard is to come, until one is."""
        if not self._requires_device or (self._devices is not None and self._devices.is_up):
            return False
        why = "it has none (an agent without devices)"
        if self._devices is not None:
            self._devices.start_one(self._device_is_up)
            why = self._devices.trouble
        self._telemetry.lacks = f"the pipeline requires a device, and this node's is not up: {why}"
        _log.warning("shards.waiting_for_device", reason=why)
        return True

    def _device_is_up(self) -> None:
        self._telemetry.lacks = None
        held, self._unannounced = self._unannounced, []
        for action in held:
            self._tell_membership(action)

    def _take_part(self) -> Participation:
        """Only now is the pipeline known: it is in the user's program, which the workers load."""
        assert self._supervisor.pipeline is not None
        log = self._membership_logs(self._supervisor.pipeline)
        part = self._participation = Participation(self._place, log, self, self._measures)
        self._taking_part = self._tasks.create_task(self._keep_taking_part(part))
        return part

    async def _keep_taking_part(self, part: Participation) -> None:
        try:
            await part.run()
        except* RefusedError as group:
            self._perform(self._supervisor.refused(str(first_error(group)), self._now()))
            self._wake.set()

    # -- what the membership asks for ---------------------------------------------------------------------------

    def own(self, worker: int, incarnation: int, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        """A worker is to run these shards and no others."""
        assert self._participation is not None
        tokens = self._participation.tokens(shards)
        self._perform(self._supervisor.own(worker, incarnation, shards, stalls, tokens))
        self._wake.set()

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> None:
        """A worker has not let go of these shards in time."""
        self._perform(self._supervisor.overdue(worker, incarnation, shards))
        self._wake.set()

    def elsewhere(self, shards: frozenset[int]) -> None:
        """The ledger knows all workers that are ready, and other nodes run these shards now."""
        self._perform(self._supervisor.elsewhere(shards, self._now()))
        self._wake.set()

    def left(self) -> None:
        """The ledger has the node's goodbye."""
        self._perform(self._supervisor.left(self._now()))
        self._wake.set()

    # -- processes ----------------------------------------------------------------------------------------------

    def _spawn(self, worker: int, incarnation: int) -> None:
        start = Start(
            worker=worker,
            incarnation=incarnation,
            factory=self._factory.reference,
            arguments=self._factory.arguments,
            drain_timeout_s=self._settings.drain_timeout_s,
            log_level=self._log_level,
        )
        child = Child(start, self._heard, self._gone)
        self._children[worker] = child
        self._watches[worker] = self._tasks.create_task(child.run())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- what is answered ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _pages(self, listener: socket.socket) -> AsyncIterator[None]:
        pages: dict[str, PageMaker] = {
            "/healthz": lambda: Page(b"ok\n"),
            "/readyz": self._readiness_page,
            "/metrics": lambda: Page(self._telemetry.metrics(), METRICS_CONTENT_TYPE),
            "/status": self._status_page,
        }
        async with HttpServer(listener, pages):
            host, port = listener.getsockname()[:2]
            _log.info("http.listening", address=f"{host}:{port}", pages=" ".join(pages))
            yield

    def _member_view(self) -> MemberView | None:
        return None if self._participation is None else self._participation.view()

    async def _status_page(self) -> Page:
        await self._telemetry.find_standbys()
        return Page(msgspec.json.encode(self.status()), "application/json")

    def _readiness_page(self) -> Page:
        ready = self._telemetry.readiness()
        body = msgspec.json.encode({"ready": ready.is_ready, "reason": ready.reason, "detail": ready.detail})
        status = HTTPStatus.OK if ready.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(body + b"\n", "application/json", status)
