"""Three development brokers as one cluster, to see what a cluster does when one of them goes.

    with DevelopmentCluster() as cluster:
        leader = cluster.leader("orders", 0)
        cluster.kill(leader)  # another one leads when Kafka's session of 9 s has ended
        cluster.start_node(leader)
        cluster.await_in_sync()

Topics have three replicas, of which two must have a record before it is acknowledged. All timeouts are Kafka's
defaults (`broker_properties.py`), so that what is measured here is what a cluster in production takes. Everything here
blocks; asynchronous programs call it in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from millstream.connectors.kafka.broker_ports import free_ports, taken_ports
from millstream.connectors.kafka.broker_properties import ClusterPlace
from millstream.connectors.kafka.broker_questions import ClusterView, ControllerRequest, Placement, ViewRequest, ask
from millstream.connectors.kafka.development_broker import DevelopmentBroker, check_settings, new_cluster_id
from millstream.connectors.kafka.requests import CoordinatorType, FindCoordinatorRequest, Request
from millstream.processor.errors import MillstreamError, SettingsError, UnavailableError

R = TypeVar("R")

NODE_IDS = (1, 2, 3)
HEAP_MB = 384
_MAJORITY = 2
_START_ATTEMPTS = 5
_START_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 2.0
_SHOWN_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.05


class DevelopmentCluster:
    """Three nodes on 127.0.0.1, each broker and controller. It runs while two of them do.

    `data_directory` keeps the data in a directory for each node (`node-1`, ...); None means temporary ones, removed by
    `stop`. `port` is the first node's, the others have the next two; None means free ones. `heap_mb` is for each node.
    `properties` are broker properties that win over the defaults, on every node.
    """

    def __init__(
        self,
        *,
        data_directory: Path | None = None,
        port: int | None = None,
        heap_mb: int = HEAP_MB,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        # The last node's port is the one that may be too large.
        check_settings(port=None if port is None else port + len(NODE_IDS) - 1, heap_mb=heap_mb)
        check_settings(port=port, heap_mb=heap_mb)
        self._data_directory = data_directory
        self._port = port
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._nodes: dict[int, DevelopmentBroker] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, `127.0.0.1:port` with commas between them."""
        return ",".join(self.node(node_id).bootstrap for node_id in NODE_IDS)

    @property
    def is_running(self) -> bool:
        """Whether enough nodes run for the cluster to work: two."""
        return len(self.running) >= _MAJORITY

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the nodes whose process runs, paused or not."""
        return tuple(node_id for node_id, node in self._nodes.items() if node.is_running)

    def node(self, node_id: int) -> DevelopmentBroker:
        """One node, to look at: its pid, address, data directory, log."""
        if node_id not in self._nodes:
            known = ", ".join(map(str, self._nodes)) or "none before its start"
            raise MillstreamError(f"the development cluster has no node {node_id}; it has {known}")
        return self._nodes[node_id]

    def log_end(self) -> str:
        """The end of every node's log that has ended, or of all when none has."""
        ended = [node_id for node_id in self._nodes if node_id not in self.running]
        return "\n".join(f"node {node_id}:\n{self.node(node_id).log_end()}" for node_id in ended or self._nodes)

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Make the cluster whole: start what does not run, resume what is paused. When this returns, every node
        answers and sees all three.

        Raises `SettingsError` for ports that are taken (naming them) or a missing extra, and `UnavailableError` with
        the end of a log. Nothing is left running after an error in the first start.
        """
        deadline = time.monotonic() + timeout_s
        if self._nodes:
            for node in self._nodes.values():
                node.resume()
            self._bring_up([node for node in self._nodes.values() if not node.is_running], deadline)
        else:
            self._start_first(deadline)

    def stop(self) -> None:
        """Stop all nodes; temporary data directories are removed. Safe to call again, and after a failed start."""
        nodes = list(self._nodes.values())
        self._nodes = {}
        if not nodes:
            return
        if self._data_directory is None:
            for node in nodes:
                node.kill()
        # The last ones to go have no controller any more and so can't leave in order: all are asked at once.
        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(DevelopmentBroker.stop, nodes))

    def stop_node(self, node_id: int) -> None:
        """Stop one node in order: it hands its leaderships over first. Its data stay for `start_node`."""
        self.node(node_id).stop(keep_data=True)

    def kill(self, node_id: int) -> None:
        """SIGKILL one node. The others lead its partitions as soon as its session has ended."""
        self.node(node_id).kill()

    def pause(self, node_id: int) -> None:
        """SIGSTOP one node: its connections stay open, and nothing is answered until `resume`."""
        self.node(node_id).pause()

    def resume(self, node_id: int) -> None:
        """SIGCONT one node."""
        self.node(node_id).resume()

    def start_node(self, node_id: int, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start a node that was stopped or killed, with its data. When this returns it is a member again, and its
        replicas may still be behind (`await_in_sync`).

        After a kill Kafka admits it only when its old session has ended, 9 s after its last sign of life.
        """
        self.node(node_id).start(timeout_s)

    def view(self, *topics: str) -> ClusterView:
        """Nodes and topics (all topics when none is named) as one running node sees them."""
        return self._ask(ViewRequest(topics or None))

    def leader(self, topic: str, partition: int, timeout_s: float = _SHOWN_TIMEOUT_S) -> int:
        """The node that leads a partition, as seen by a running node: -1 while there is none, and still the old one
        until the cluster has noticed that it is gone.

        Raises `UnavailableError` when the partition is not there in time, or nobody answers. A new topic is shown by
        each node some milliseconds after its creation was answered.
        """
        found: list[int] = []

        def missing() -> list[str]:
            placement = self.view(topic).topics.get(topic, {}).get(partition)
            found.extend([] if placement is None else [placement.leader])
            return [] if found else ["create the topic first"]

        self._until(time.monotonic() + timeout_s, missing, f"no node shows partition {topic}-{partition}")
        return found[-1]

    def group_coordinator(self, group: str, timeout_s: float = _START_TIMEOUT_S) -> int:
        """The node that coordinates a consumer group. Raises `UnavailableError` when there is none in time."""
        return self._coordinator(CoordinatorType.GROUP, group, timeout_s)

    def transaction_coordinator(self, transactional_id: str, timeout_s: float = _START_TIMEOUT_S) -> int:
        """The node that coordinates a transactional id. Raises `UnavailableError` when there is none in time."""
        return self._coordinator(CoordinatorType.TRANSACTION, transactional_id, timeout_s)

    def active_controller(self) -> int:
        """The node whose controller is the active one, or -1 during an election."""
        return self._ask(ControllerRequest())

    def await_in_sync(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until every replica of every partition is in sync, so that any node may go without harm.

        Raises `UnavailableError` naming partitions that are not.
        """
        self._until(time.monotonic() + timeout_s, self._behind, "replicas are not in sync")

    def await_topic(self, topic: str, timeout_s: float = _SHOWN_TIMEOUT_S) -> None:
        """Wait until every running node shows the topic, which takes them some milliseconds after its creation.

        Raises `UnavailableError` naming the nodes that do not.
        """

        def missing() -> list[str]:
            views = {node.bootstrap: _ask_node(node, ViewRequest([topic])) for node in self._answering()}
            return [address for address, view in views.items() if not view.topics.get(topic)]

        self._until(time.monotonic() + timeout_s, missing, f"not every node shows topic {topic}")

    def _start_first(self, deadline: float) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            chosen = self._make_nodes()
            try:
                self._bring_up(list(self._nodes.values()), deadline)
                return
            except BaseException as error:
                self.stop()
                is_race = isinstance(error, (SettingsError, UnavailableError)) and bool(taken_ports(chosen))
                if not is_race or attempt == _START_ATTEMPTS:
                    raise

    def _make_nodes(self) -> list[int]:
        """Lay out the nodes. Answers the ports that were chosen here."""
        chosen = free_ports(2 * len(NODE_IDS))
        controller_ports = dict(zip(NODE_IDS, chosen, strict=False))
        if self._port is None:
            ports = chosen[len(NODE_IDS) :]
        else:
            ports = [self._port + index for index in range(len(NODE_IDS))]
        cluster_id = self._cluster_id()
        for node_id, port in zip(NODE_IDS, ports, strict=True):
            place = ClusterPlace(node_id=node_id, cluster_id=cluster_id, port=port, controller_ports=controller_ports)
            self._nodes[node_id] = DevelopmentBroker(
                data_directory=self._data_directory / f"node-{node_id}" if self._data_directory else None,
                heap_mb=self._heap_mb,
                properties=self._properties,
                place=place,
            )
        return chosen

    def _cluster_id(self) -> str:
        """A new id, or the one that the data were made with: nodes of different ids would not talk to each other."""
        if self._data_directory is None:
            return new_cluster_id()
        file = self._data_directory / "cluster-id"
        if not file.exists():
            self._data_directory.mkdir(parents=True, exist_ok=True)
            file.write_text(new_cluster_id())
        return file.read_text()

    def _bring_up(self, nodes: list[DevelopmentBroker], deadline: float) -> None:
        """Start nodes together: none of the first two is ready before the other one is there to elect a controller."""
        with ThreadPoolExecutor(len(NODE_IDS)) as threads:
            list(threads.map(lambda node: node.launch(deadline - time.monotonic()), nodes))
        for node in nodes:
            node.await_ready(deadline - time.monotonic())
        self._until(deadline, self._missing_members, "the nodes do not see each other")

    def _missing_members(self) -> list[str]:
        missing = []
        for node_id in NODE_IDS:
            seen = _ask_node(self.node(node_id), ViewRequest([])).ports.keys()
            missing += [f"node {node_id} does not see node {other}" for other in NODE_IDS if other not in seen]
        return missing

    def _behind(self) -> list[str]:
        return [
            f"{topic}-{partition} ({_described(placement)})"
            for topic, partitions in self.view().topics.items()
            for partition, placement in partitions.items()
            if placement.leader < 0 or set(placement.in_sync) != set(placement.replicas)
        ]

    def _coordinator(self, kind: CoordinatorType, key: str, timeout_s: float) -> int:
        """Asked again for a while: Kafka creates its internal topics when somebody first looks for a coordinator."""
        found: list[int] = []

        def missing() -> list[str]:
            answer = self._ask(FindCoordinatorRequest(kind, key))
            if answer.error:
                return [f"error {answer.error} ({answer.message})"]
            found.append(answer.node.node_id)
            return []

        self._until(time.monotonic() + timeout_s, missing, f"no coordinator of {key!r}")
        return found[-1]

    @staticmethod
    def _until(deadline: float, missing: Callable[[], list[str]], what: str) -> None:
        """Ask again until nothing is missing. Raises `UnavailableError` with the last answer."""
        while True:
            try:
                reasons = missing()
            except UnavailableError as error:
                reasons = [str(error)]
            if not reasons:
                return
            if time.monotonic() >= deadline:
                raise UnavailableError(f"{what} within the time given: {'; '.join(reasons[:5])}")
            time.sleep(_POLL_INTERVAL_S)

    def _ask(self, request: Request[R]) -> R:
        """Ask the first node that answers. Raises `UnavailableError` when none does."""
        last = UnavailableError("no node of the development cluster runs; start one")
        for node in self._answering():
            try:
                return _ask_node(node, request)
            except UnavailableError as error:
                last = error
        raise last

    def _answering(self) -> Iterator[DevelopmentBroker]:
        return (node for node in self._nodes.values() if node.is_running and not node.is_paused)


def _ask_node(node: DevelopmentBroker, request: Request[R]) -> R:
    return ask(int(node.bootstrap.rpartition(":")[2]), request, timeout_s=_ANSWER_TIMEOUT_S)


def _described(placement: Placement) -> str:
    return f"leader {placement.leader}, in sync {list(placement.in_sync)} of {list(placement.replicas)}"
