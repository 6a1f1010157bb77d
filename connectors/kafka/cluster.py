"""The cluster as one client sees it: brokers, topics, leaders, coordinators, and connections to them.

Connections are kept by broker and *role*. A broker answers one request at a time for each connection, so a fetch that
waits would hold up a commit behind it: fetches, lookups and each shard's transactions have connections of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from millstream.connectors.kafka.connection import Connection
from millstream.connectors.kafka.error_codes import Code, error_for
from millstream.connectors.kafka.event_log import LOG
from millstream.connectors.kafka.requests import (
    ApiVersionsRequest,
    Broker,
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataView,
    Request,
    TopicView,
)
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor.errors import RefusedError, UnavailableError
from millstream.processor.partitions import TopicPartition
from millstream.processor.seldom import SeldomWarning

R = TypeVar("R")

LOOKUP_ROLE = "lookup"
_TRANSACTIONS_V2 = ("transaction.version", 2)
_RETRY_PAUSE_S = (0.02, 0.05, 0.1, 0.2, 0.5)


def retry_pause_s(attempt: int) -> float:
    """How long to wait after the failed attempt number `attempt` (from 0): 20 ms, growing to half a second."""
    return _RETRY_PAUSE_S[min(attempt, len(_RETRY_PAUSE_S) - 1)]


class Cluster:
    """Finds its way through the cluster and keeps the connections until `close`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._view = MetadataView({}, {})
        self._topics: set[str] = set()
        self._connections: dict[tuple[int, Hashable], Connection] = {}
        self._opening: dict[tuple[int, Hashable], asyncio.Lock] = {}
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}
        self._asked = 0
        self._unanswered: dict[int, int] = {}
        self._refreshing = asyncio.Lock()
        self._refreshes = 0
        self._none_known_answers = SeldomWarning(LOG, "brokers.silent")

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def request_timeout_s(self) -> float:
        """How long one request may take."""
        return self._settings.request_timeout_ms / 1000

    @property
    def view(self) -> MetadataView:
        """The cluster as last seen; replaced, never changed, by `refresh`."""
        return self._view

    async def connect(self) -> None:
        """Find the cluster and see that it can do what is needed.

        Tries every bootstrap address again and again for `connect_timeout_ms`. Raises UnavailableError after that, and
        RefusedError at once for wrong credentials or a broker without Transactions V2.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.connect_timeout_ms / 1000
        waiting = SeldomWarning(LOG, "broker.awaited", brokers=",".join(self._settings.brokers))
        attempt = 0
        while True:
            try:
                await self.refresh()
                await self._require_transactions_v2()
            except UnavailableError as error:
                if loop.time() >= deadline:
                    raise UnavailableError(
                        f"no broker of {', '.join(self._settings.brokers)} could be reached within "
                        f"{self._settings.connect_timeout_ms / 1000:g} s; last: {error}"
                    ) from error
                waiting(error)
            else:
                return
            await asyncio.sleep(retry_pause_s(attempt))
            attempt += 1

    async def _require_transactions_v2(self) -> None:
        feature, level = _TRANSACTIONS_V2
        found = (await self.call_any(ApiVersionsRequest())).finalized.get(feature, 0)
        if found < level:
            raise RefusedError(
                f"the cluster has {feature}={found}; exactly-once needs {feature} >= {level} "
                "(Apache Kafka 4.0 or later). On an upgraded cluster run: "
                f"kafka-features.sh --bootstrap-server {self._settings.brokers[0]} upgrade --feature {feature}={level}"
            )

    def track(self, topics: Iterable[str]) -> None:
        """Include these topics in every refresh from now on."""
        self._topics.update(topics)

    async def refresh(self) -> MetadataView:
        """Ask for the metadata of all tracked topics. Callers that come while one is under way share its answer."""
        seen = self._refreshes
        async with self._refreshing:
            if self._refreshes == seen:
                self._view = await self._ask_for_metadata()
                self._refreshes += 1
        return self._view

    async def _ask_for_metadata(self) -> MetadataView:
        request = MetadataRequest(sorted(self._topics))
        if self._view.brokers:
            try:
                return await self.call_any(request)
            except UnavailableError as error:
                self._none_known_answers(error)
        errors: list[UnavailableError] = []
        for host, port in self._settings.addresses:
            try:
                connection = await Connection.open(host, port, self._settings)
                try:
                    return await connection.call(request, timeout_s=self.request_timeout_s)
                finally:
                    connection.close()
            except UnavailableError as error:
                errors.append(error)
        raise errors[-1]

    def topic(self, name: str) -> TopicView | None:
        """The topic as last seen; None where it does not exist or is not tracked."""
        topic = self._view.topics.get(name)
        return topic if topic is not None and topic.error == Code.NONE and topic.partitions else None

    def topic_error(self, name: str) -> int:
        """The error code that metadata shows for a topic; UNKNOWN_TOPIC_OR_PARTITION when it was not asked for."""
        topic = self._view.topics.get(name)
        return Code.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error

    def leader(self, partition: TopicPartition) -> int | None:
        """The leader as last seen, or None while there is none."""
        topic = self.topic(partition.topic)
        view = topic.partitions.get(partition.partition) if topic else None
        return None if view is None or view.leader < 0 else view.leader

    async def leaders(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The leaders of all of them. Raises UnavailableError where one has none, after one refresh."""
        partitions = list(partitions)
        found = {partition: self.leader(partition) for partition in partitions}
        if None in found.values():
            self.track(partition.topic for partition in partitions)
            await self.refresh()
            found = {partition: self.leader(partition) for partition in partitions}
        missing = [str(partition) for partition, leader in found.items() if leader is None]
        if missing:
            raise UnavailableError(f"no leader for {', '.join(missing[:5])}")
        return {partition: leader for partition, leader in found.items() if leader is not None}

    async def connection(self, node_id: int, role: Hashable) -> Connection:
        """The connection to a broker for a role, opened when needed. Raises UnavailableError or RefusedError."""
        place = (node_id, role)
        connection = self._connections.get(place)
        if connection is not None and connection.usable:
            return connection
        async with self._opening.setdefault(place, asyncio.Lock()):
            connection = self._connections.get(place)
            if connection is not None and connection.usable:
                return connection
            broker = self._view.brokers.get(node_id)
            if broker is None:
                await self.refresh()
                broker = self._view.brokers.get(node_id)
            if broker is None:
                raise UnavailableError(f"broker {node_id} is not among the cluster's brokers")
            self._connections[place] = connection = await self._open(broker)
            return connection

    def open_connection(self, node_id: int, role: Hashable) -> Connection | None:
        """The connection to a broker for a role, if there is one that can be used."""
        connection = self._connections.get((node_id, role))
        return connection if connection is not None and connection.usable else None

    async def _open(self, broker: Broker) -> Connection:
        return await Connection.open(broker.host, broker.port, self._settings)

    def release(self, role: Hashable) -> None:
        """Close the connections of a role that is not needed any more."""
        for place in [place for place in self._connections if place[1] == role]:
            self._connections.pop(place).close()
            self._opening.pop(place, None)

    async def call(self, node_id: int, role: Hashable, request: Request[R], *, timeout_s: float | None = None) -> R:
        """Send a request to one broker. Raises UnavailableError or RefusedError."""
        connection = await self.connection(node_id, role)
        return await connection.call(request, timeout_s=timeout_s or self.request_timeout_s)

    async def call_any(self, request: Request[R]) -> R:
        """Send a request to any broker that answers. Raises UnavailableError when none does.

        One that did not answer is asked last from then on: each try costs the whole timeout where it hangs.
        """
        last = UnavailableError("the cluster has no brokers")
        for node_id in sorted(self._view.brokers, key=lambda node: self._unanswered.get(node, 0)):
            self._asked += 1
            self._unanswered[node_id] = self._asked
            try:
                answer = await self.call(node_id, LOOKUP_ROLE, request)
            except UnavailableError as error:
                last = error
            else:
                # Several may have asked at once.
                self._unanswered.pop(node_id, None)
                return answer
        raise last

    async def coordinator(self, kind: CoordinatorType, key: str) -> int:
        """The broker that coordinates a group or transactional id. Raises UnavailableError or RefusedError."""
        place = (kind, key)
        if place not in self._coordinators:
            answer = await self.call_any(FindCoordinatorRequest(kind, key))
            if answer.error != Code.NONE:
                raise error_for(answer.error, f"looking for the coordinator of {key}", answer.message)
            self._coordinators[place] = answer.node.node_id
        return self._coordinators[place]

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Look it up again next time: it moved, or its broker is gone."""
        self._coordinators.pop((kind, key), None)
