"""`millstream broker`: a real Apache Kafka for development, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from types import FrameType

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.development_cluster import HEAP_MB, NODE_IDS, DevelopmentCluster
from millstream.processor.errors import UnavailableError

_POLL_INTERVAL_S = 0.5
_HEAP_MB_ALONE = 1024


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        type=int,
        choices=(1, len(NODE_IDS)),
        default=1,
        help="nodes of the cluster: 1, or 3 with replication",
    )
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="port on 127.0.0.1 (a free one); further nodes have the next ones"
    )
    parser.add_argument(
        "--data-directory", type=Path, metavar="DIRECTORY", help="keep the data here (a temporary directory)"
    )
    parser.add_argument(
        "--heap-mb", type=int, metavar="MB", help=f"Java heap of each node ({_HEAP_MB_ALONE}; of three {HEAP_MB})"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Start the broker, print its address, wait for SIGINT or SIGTERM, and stop it in order; 0 when it stopped so.

    Raises `UnavailableError` when the broker, or all but one of several nodes, ends by itself.
    """
    ordered_to_stop = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        # A second signal during the stop falls back to Python's own: it cuts the wait short, and the supervisor kills
        # the broker as soon as this process is gone.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ordered_to_stop.set()

    broker = _broker(arguments)
    with broker:
        # While it starts, Ctrl-C interrupts the start as usual; from here on a signal is an order to stop.
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        _announce(broker, keeps_data=arguments.data_directory is not None)
        running = set(NODE_IDS)
        while not ordered_to_stop.wait(_POLL_INTERVAL_S):
            if not broker.is_running:
                raise UnavailableError(f"the broker ended by itself:\n{broker.log_end()}")
            if isinstance(broker, DevelopmentCluster):
                for node_id in running.difference(broker.running):
                    print(f"Node {node_id} has ended; the others go on", flush=True)
                running.intersection_update(broker.running)
        print("Stopping ...", flush=True)
    return 0


def _broker(arguments: argparse.Namespace) -> DevelopmentBroker | DevelopmentCluster:
    directory, port, heap_mb = arguments.data_directory, arguments.port, arguments.heap_mb
    if arguments.nodes == 1:
        heap_mb = _HEAP_MB_ALONE if heap_mb is None else heap_mb
        return DevelopmentBroker(data_directory=directory, port=port, heap_mb=heap_mb)
    return DevelopmentCluster(data_directory=directory, port=port, heap_mb=HEAP_MB if heap_mb is None else heap_mb)


def _announce(broker: DevelopmentBroker | DevelopmentCluster, *, keeps_data: bool) -> None:
    fate = "kept" if keeps_data else "removed at the end"
    print(f"Apache Kafka is ready at {broker.bootstrap}")
    if isinstance(broker, DevelopmentBroker):
        print(f"  data: {broker.data_directory} ({fate})")
    else:
        for node_id in broker.running:
            node = broker.node(node_id)
            print(f"  node {node_id}: {node.bootstrap}, process {node.pid}, data {node.data_directory} ({fate})")
    print(f"  use:  export MILLSTREAM_BROKERS={broker.bootstrap}")
    print("  stop: Ctrl-C", flush=True)
