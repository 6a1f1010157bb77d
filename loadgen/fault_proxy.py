"""A proxy of our own between one node and the brokers, which reads Kafka's framing and does what rules say.

    async with FaultProxy(broker.bootstrap) as proxy:  # or: with ProxyThread(broker.bootstrap) as proxy
        ...  # the node under test connects to proxy.bootstrap
        fault = proxy.apply(Rule(Delay(5.0), Way.ANSWERS, apis={Api.END_TXN}))
        ...
        proxy.lift(fault)

Each broker gets a listener here, opened when its address first appears in an answer, and answers name the listeners in
place of the brokers: clients stay behind the proxy whatever they learn. Rewriting was preferred to a listener at the
broker for each proxied node, with the proxy as its advertised address: a broker's listeners are fixed at its start,
while proxies come and go with the tests, also in front of a cluster that somebody else runs, and with several at once.
It also lets a node in a network namespace of its own reach brokers that listen on loopback alone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from millstream.connectors.kafka.broker_ports import free_ports
from millstream.connectors.kafka.settings import parse_address, split_brokers
from millstream.loadgen.fault_relay import BUFFER_BYTES, Relay, World, close, closed
from millstream.loadgen.fault_rules import Fault, Rule, RuleBook
from millstream.loadgen.kafka_addresses import clamped, places, replaced, topic_names, without_endpoints
from millstream.loadgen.kafka_frames import Api, FrameError, Request
from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import UnavailableError
from millstream.processor.event_log import EventLog

_LOG = EventLog(logging.getLogger(__name__))
_LISTEN_ATTEMPTS = 5
_MISTAKES_KEPT = 20


@dataclass(slots=True)
class _Listener:
    """One broker's stand-in. `server` is None while connections are refused."""

    host: str
    port: int
    listen_port: int
    node_id: int = -1
    server: asyncio.Server | None = None


class FaultProxy:
    """In front of the brokers of `upstream` (`host:port,...`), listening on `host`. An async context manager.

    All methods belong to one event loop. `name` appears in what is recorded; `seed` decides what probabilities do.
    """

    def __init__(self, upstream: str, *, host: str = "127.0.0.1", name: str = "proxy", seed: int = 0) -> None:
        self._upstream = [parse_address(broker) for broker in split_brokers(upstream)]
        self._host = host
        self._name = name
        self._topic_names: dict[bytes, str] = {}
        self._world = World(RuleBook(seed, self._topic_names), asyncio.Event(), self._readdressed)
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._opening = asyncio.Lock()
        self._relays: dict[asyncio.Task[None], Relay | None] = {}
        self._is_refusing = False
        self.mistakes: list[str] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if error is None:
            self.check()

    async def start(self) -> None:
        """Listen for every upstream address. Raises UnavailableError where that cannot be, with nothing left open."""
        try:
            for host, port in self._upstream:
                await self._listener(host, port)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every listener and connection."""
        for listener in self._listeners.values():
            _stop_listening(listener)
        for task in list(self._relays):
            task.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def check(self) -> None:
        """Raises UnavailableError where something could not be read: what was tested then was not what was meant."""
        if self.mistakes:
            raise UnavailableError(f"{self._name} could not read what passed it: {'; '.join(self.mistakes)}")

    @property
    def bootstrap(self) -> str:
        """Where clients connect to: `host:port`, or several with commas between them."""
        return ",".join(f"{self._host}:{self._listeners[address].listen_port}" for address in self._upstream)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is in force now."""
        return self._world.book.faults

    def apply(self, *rules: Rule) -> Fault:
        """These rules hold from now on, also for what is under way."""
        ordered = Moment.now()
        fault = Fault(rules, Strike(_described(rules), self._name, ordered, ordered))
        self._world.book.add(fault)
        self._world.rules_changed()
        _LOG.info("fault.applied", proxy=self._name, fault=fault.began.fault)
        return fault

    def lift(self, fault: Fault) -> None:
        """Its rules hold no more: what was held back goes on, connections that lost something are reset.

        Raises ValueError where it was lifted before.
        """
        self._world.book.remove(fault)
        ordered = Moment.now()
        for relay in list(self._relays.values()):
            if relay is not None:
                relay.lifted(fault)
        self._world.rules_changed()
        fault.ended = Strike(f"end of {fault.began.fault}", self._name, ordered, Moment.now())
        _LOG.info("fault.lifted", proxy=self._name, fault=fault.began.fault, hits=fault.hits)

    async def refuse(self) -> Strike:
        """New connections are refused from now on; those that are open stay."""
        ordered = Moment.now()
        async with self._opening:
            self._is_refusing = True
            for listener in self._listeners.values():
                _stop_listening(listener)
        return Strike("refuse connections", self._name, ordered, Moment.now())

    async def accept(self) -> Strike:
        """New connections are accepted again. Raises UnavailableError where a port was taken meanwhile."""
        ordered = Moment.now()
        async with self._opening:
            self._is_refusing = False
            for listener in self._listeners.values():
                if listener.server is None:
                    try:
                        await self._listen(listener)
                    except OSError as error:
                        raise UnavailableError(
                            f"{self._name} cannot listen on port {listener.listen_port} again: {error}; run it again"
                        ) from error
        return Strike("accept connections", self._name, ordered, Moment.now())

    async def _listener(self, host: str, port: int, node_id: int = -1) -> _Listener:
        """The stand-in of a broker, opened where there is none yet. Raises UnavailableError."""
        async with self._opening:
            listener = self._listeners.get((host, port))
            if listener is None:
                listener = self._listeners[host, port] = await self._opened(host, port)
            if node_id >= 0:
                listener.node_id = node_id
        return listener

    async def _opened(self, host: str, port: int) -> _Listener:
        reasons = []
        for _ in range(_LISTEN_ATTEMPTS):
            listener = _Listener(host, port, free_ports(1)[0])
            if self._is_refusing:
                return listener
            try:
                await self._listen(listener)
            except OSError as error:
                # Somebody took the port in between, or the address is not this machine's.
                reasons.append(str(error))
            else:
                return listener
        raise UnavailableError(f"{self._name} cannot listen on {self._host}: {'; '.join(dict.fromkeys(reasons))}")

    async def _listen(self, listener: _Listener) -> None:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(listener, reader, writer))
            self._relays[task] = None
            task.add_done_callback(lambda task: self._forget(task, writer))

        listener.server = await asyncio.start_server(connected, self._host, listener.listen_port, limit=BUFFER_BYTES)

    def _forget(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._relays.pop(task, None)
        if not writer.is_closing():
            # It was cancelled before there was a relay.
            writer.transport.abort()

    async def _serve(self, listener: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker = await asyncio.open_connection(listener.host, listener.port, limit=BUFFER_BYTES)
        except OSError:
            # As the broker's own port would: it cannot be reached.
            close(writer, reset=True)
            await closed(writer)
            return
        relay = Relay(self._world, (reader, writer), broker, lambda: listener.node_id)
        task = asyncio.current_task()
        assert task is not None
        self._relays[task] = relay
        try:
            await relay.run()
        except (FrameError, UnavailableError) as error:
            _LOG.error("proxy.unreadable", proxy=self._name, broker=f"{listener.host}:{listener.port}", reason=error)
            if len(self.mistakes) < _MISTAKES_KEPT:
                self.mistakes.append(str(error))

    async def _readdressed(self, request: Request, answer: bytes) -> bytes:
        """The answer as a client behind this proxy may see it. Raises FrameError, or UnavailableError."""
        api, version = request.api, request.version
        if api == Api.API_VERSIONS:
            return clamped(version, answer)
        if api == Api.PRODUCE:
            return without_endpoints(version, answer)
        if api == Api.METADATA:
            self._topic_names.update(topic_names(version, answer))
        found = places(api, version, answer)
        new = {}
        for address in {place.address for place in found}:
            listener = await self._listener(address.host, address.port, address.node_id)
            new[address] = (self._host, listener.listen_port)
        return replaced(api, version, answer, found, new)


def _stop_listening(listener: _Listener) -> None:
    if listener.server is not None:
        listener.server.close()
        listener.server = None


def _described(rules: tuple[Rule, ...]) -> str:
    texts = []
    for rule in rules:
        named = {
            "apis": rule.apis and sorted(rule.apis),
            "topics": rule.topics and sorted(rule.topics),
            "transactional_ids": rule.transactional_ids and sorted(rule.transactional_ids),
            "brokers": rule.brokers and sorted(rule.brokers),
            "probability": rule.probability if rule.probability < 1 else None,
            "times": rule.times,
        }
        limits = "".join(f" {name}={value}" for name, value in named.items() if value is not None)
        texts.append(f"{rule.action} {rule.way.value}{limits}")
    return "; ".join(texts)
