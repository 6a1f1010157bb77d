"""`millstream broker`: a real Apache Kafka for development, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from types import FrameType

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.processor.errors import UnavailableError

_POLL_INTERVAL_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="port on 127.0.0.1 (a free one)")
    parser.add_argument(
        "--data-directory", type=Path, metavar="DIRECTORY", help="keep the data here (a temporary directory)"
    )
    parser.add_argument("--heap-mb", type=int, default=1024, metavar="MB", help="Java heap (1024)")


def execute(arguments: argparse.Namespace) -> int:
    """Start the broker, print its address, wait for SIGINT or SIGTERM, and stop it in order; 0 when it stopped so.

    Raises `UnavailableError` when the broker ends by itself.
    """
    ordered_to_stop = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        # A second signal during the stop falls back to Python's own: it cuts the wait short, and the supervisor kills
        # the broker as soon as this process is gone.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ordered_to_stop.set()

    broker = DevelopmentBroker(data_directory=arguments.data_directory, port=arguments.port, heap_mb=arguments.heap_mb)
    with broker:
        # While it starts, Ctrl-C interrupts the start as usual; from here on a signal is an order to stop.
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        _announce(broker, keeps_data=arguments.data_directory is not None)
        while not ordered_to_stop.wait(_POLL_INTERVAL_S):
            if not broker.is_running:
                raise UnavailableError(f"the broker ended by itself:\n{broker.log_end()}")
        print("Stopping ...", flush=True)
    return 0


def _announce(broker: DevelopmentBroker, *, keeps_data: bool) -> None:
    fate = "kept" if keeps_data else "removed at the end"
    print(f"Apache Kafka is ready at {broker.bootstrap}")
    print(f"  data: {broker.data_directory} ({fate})")
    print(f"  use:  export MILLSTREAM_BROKERS={broker.bootstrap}")
    print("  stop: Ctrl-C", flush=True)
