"""A real Apache Kafka for development, tests and the demo: a KRaft node, up in seconds, never left behind.

    with DevelopmentBroker() as broker:
        ...  # clients connect to broker.bootstrap

Java and Kafka's jars come from the extra `broker` (`broker_distribution.py`). A small supervisor process starts the
broker and kills it when this program is gone, however that happened (`broker_supervisor.py`). Everything here
blocks; asynchronous programs call it in a thread. Several nodes as one cluster: `development_cluster.py`.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.connectors.kafka import broker_supervisor
from millstream.connectors.kafka.broker_distribution import KafkaDistribution, kafka_distribution
from millstream.connectors.kafka.broker_ports import free_ports, taken_ports
from millstream.connectors.kafka.broker_properties import (
    BrokerSecurity,
    ClusterPlace,
    java_options,
    listener_names,
    logging_text,
    properties_text,
    server_properties,
)
from millstream.connectors.kafka.broker_questions import answers
from millstream.processor.errors import MillstreamError, SettingsError, UnavailableError

__all__ = ["BrokerSecurity", "DevelopmentBroker"]

_START_ATTEMPTS = 5
_STOP_TIMEOUT_S = 10
_ANSWER_TIMEOUT_S = 1
_POLL_INTERVAL_S = 0.02
_HEAP_MB_MIN = 128
_LOG_LINES_SHOWN = 15


class DevelopmentBroker:
    """One Apache Kafka node on 127.0.0.1.

    `data_directory` None means a temporary one, removed by `stop` (or by the supervisor, when this program dies
    first). `port` None means a free one, chosen at the first start and kept for later starts. `properties` are broker
    properties that win over the defaults. After `kill` or `stop`, `start` runs the same broker again: on the same
    port, and with its data unless `stop` removed a temporary directory. `place` makes it one node of a
    `DevelopmentCluster`, and decides its ports.
    """

    def __init__(
        self,
        *,
        data_directory: Path | None = None,
        port: int | None = None,
        heap_mb: int = 1024,
        properties: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
        place: ClusterPlace | None = None,
    ) -> None:
        check_settings(port=port, heap_mb=heap_mb, security=security)
        self._wanted_directory = data_directory
        self._directory: Path | None = None
        self._wanted_port = port
        self._place = place
        self._ports: dict[str, int] = place.ports if place else {}
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._security = security
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._is_paused = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port` of the plain listener."""
        return self._address("PLAINTEXT")

    @property
    def sasl_bootstrap(self) -> str:
        """`127.0.0.1:port` of the SASL_PLAINTEXT listener; there with `security.sasl_users`."""
        return self._address("SASL_PLAINTEXT")

    @property
    def ssl_bootstrap(self) -> str:
        """`127.0.0.1:port` of the SSL listener; there with `security.ssl_certificate_file`."""
        return self._address("SSL")

    def _address(self, listener: str) -> str:
        if listener not in self._ports:
            raise MillstreamError(f"the development broker has no {listener} listener, or was never started")
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        """The Java process's id, or None while the broker does not run."""
        return self._pid

    @property
    def is_running(self) -> bool:
        """False before the start, after the end, and when the process has ended by itself."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def data_directory(self) -> Path:
        """Where data, configuration and the log (`kafka.log`) lie."""
        if self._directory is None:
            raise MillstreamError("the development broker has no data directory before its first start")
        return self._directory

    def start(self, timeout_s: float = 60) -> None:
        """Start the broker. When this returns it has answered a request. Does nothing when it already runs.

        Raises `SettingsError` for a port that is taken (naming it) or a missing extra, and `UnavailableError` with
        the end of the broker's log when the broker ends or stays silent. Nothing is left running after an error.
        """
        if self.is_running:
            return
        deadline = time.monotonic() + timeout_s
        try:
            for attempt in range(1, _START_ATTEMPTS + 1):
                chosen = self.launch(deadline - time.monotonic())
                if self._becomes_ready(deadline):
                    return
                self._end(b"k")
                if attempt == _START_ATTEMPTS or not taken_ports(self._ports.values()):
                    raise self._start_error()
                # One that was chosen here was taken in between.
                for listener in chosen:
                    del self._ports[listener]
        except BaseException:
            # A cluster's node was there before, and the others hold its place for it.
            self.stop(keep_data=self._place is not None)
            raise

    def launch(self, timeout_s: float) -> list[str]:
        """The first half of a start: afterwards the process runs, and does not answer yet. Answers which listeners
        got a new port.

        For nodes that become ready only together; `await_ready` is the other half. Raises as `start` does; then, and
        after an interruption, the caller has to `stop` it.
        """
        self._forget()
        distribution = kafka_distribution()
        self._prepare_directory()
        chosen = self._choose_ports()
        self._write_properties()
        self._format_storage(distribution, timeout_s)
        self._spawn(distribution)
        return chosen

    def await_ready(self, timeout_s: float) -> None:
        """The second half: it has answered a request. Raises `UnavailableError` with the end of its log."""
        if not self._becomes_ready(time.monotonic() + timeout_s):
            raise self._start_error()

    def stop(self, *, keep_data: bool = False) -> None:
        """Stop the broker in order (SIGTERM), or with SIGKILL after 10 s; a temporary data directory is removed,
        unless `keep_data` leaves it for the next `start`.

        Safe to call again, and after a failed start.
        """
        # A paused process would get the order only when it goes on.
        self.resume()
        self._end(b"t")
        if self._wanted_directory is None and self._directory is not None and not keep_data:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """SIGKILL, as a crash of the broker would be: data, directory and port stay for the next `start`."""
        self._end(b"k")

    @property
    def is_paused(self) -> bool:
        """Whether it was paused and not resumed since."""
        return self._is_paused

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, until `resume`. Does nothing when it does not run."""
        if self.is_running and self._pid is not None:
            os.kill(self._pid, signal.SIGSTOP)
            self._is_paused = True

    def resume(self) -> None:
        """SIGCONT after a `pause`; does nothing otherwise."""
        if self._is_paused and self.is_running and self._pid is not None:
            os.kill(self._pid, signal.SIGCONT)
        self._is_paused = False

    def _prepare_directory(self) -> None:
        if self._directory is None:
            self._directory = self._wanted_directory or Path(tempfile.mkdtemp(prefix="millstream-broker-"))
        # Kafka writes paths into its files, so a relative one would mean something else after a change of directory.
        self._directory = self._directory.absolute()
        self._log_directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.xml").write_text(logging_text(self._directory / "kafka.log"))

    @property
    def _log_directory(self) -> Path:
        return self.data_directory / "log"

    def _choose_ports(self) -> list[str]:
        """Give every listener a port. Answers which listeners got a new one; the others keep theirs."""
        if self._wanted_port is not None:
            self._ports["PLAINTEXT"] = self._wanted_port
        if taken := taken_ports(self._ports.values()):
            numbers = ", ".join(str(port) for port in taken)
            raise SettingsError(
                "the development broker cannot start",
                [f"port {numbers} on 127.0.0.1 is taken by another process; end that one or choose another port"],
            )
        missing = [name for name in listener_names(self._security) if name not in self._ports]
        self._ports |= dict(zip(missing, free_ports(len(missing)), strict=True))
        return missing

    def _write_properties(self) -> None:
        text = properties_text(
            server_properties(
                log_directory=self._log_directory,
                ports=self._ports,
                place=self._place,
                security=self._security,
                ssl_keystore_file=self._write_keystore(),
                overrides=self._properties,
            )
        )
        self._properties_file.write_text(text)

    @property
    def _properties_file(self) -> Path:
        return self.data_directory / "server.properties"

    def _write_keystore(self) -> Path | None:
        """Kafka wants the key and its certificates in one PEM file."""
        security = self._security
        if security is None or security.ssl_key_file is None or security.ssl_certificate_file is None:
            return None
        keystore = self.data_directory / "keystore.pem"
        keystore.touch(mode=0o600)
        keystore.write_text(security.ssl_key_file.read_text() + "\n" + security.ssl_certificate_file.read_text())
        return keystore

    def _java(self, distribution: KafkaDistribution, *arguments: str) -> list[str]:
        options = java_options(heap_mb=self._heap_mb, logging_file=self.data_directory / "log4j2.xml")
        return [str(distribution.java), *options, "-cp", distribution.class_path, *arguments]

    def _format_storage(self, distribution: KafkaDistribution, timeout_s: float) -> None:
        """Give an empty data directory its cluster id and its features; a formatted one is left as it is."""
        if (self._log_directory / "meta.properties").exists():
            return
        cluster_id = self._place.cluster_id if self._place else new_cluster_id()
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties_file)]
        scram = self._security.scram_arguments() if self._security else []
        try:
            result = subprocess.run(
                self._java(distribution, *tool, *scram),
                capture_output=True,
                text=True,
                timeout=max(1, timeout_s),
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError("the development broker's storage was not formatted in time") from error
        if result.returncode != 0:
            lines = (result.stdout + result.stderr).splitlines()[-_LOG_LINES_SHOWN:]
            raise UnavailableError("the development broker's storage could not be formatted:\n" + "\n".join(lines))

    def _spawn(self, distribution: KafkaDistribution) -> None:
        remove = ["--remove", str(self.data_directory)] if self._wanted_directory is None else []
        options = ["--parent", str(os.getpid()), *remove]
        command = self._java(distribution, "kafka.Kafka", str(self._properties_file))
        with (self.data_directory / "java.out").open("wb") as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-IS", broker_supervisor.__file__, *options, "--", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                # A group of its own: Ctrl-C in the terminal reaches this program alone, which then stops the broker.
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as line:
            first = line.readline()
        self._pid = int(first) if first else None

    def _becomes_ready(self, deadline: float) -> bool:
        """True as soon as the broker answers; False once its process has ended or the deadline has passed."""
        assert self._supervisor is not None
        while time.monotonic() < deadline and self._supervisor.poll() is None:
            if answers(self._ports["PLAINTEXT"], timeout_s=_ANSWER_TIMEOUT_S):
                return True
            time.sleep(_POLL_INTERVAL_S)
        return False

    def _start_error(self) -> UnavailableError:
        return UnavailableError(f"the development broker did not become ready; its log ends with:\n{self.log_end()}")

    def log_end(self) -> str:
        """The last errors of the broker's log, or its last lines when there are none."""
        return "\n".join(line for name in ("kafka.log", "java.out") for line in self._log_tail(name))

    def _log_tail(self, name: str) -> list[str]:
        file = self.data_directory / name
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        # The reason stands in the errors; the lines around them are the shutdown's.
        errors = [line for line in lines if " ERROR " in line or "Exception" in line]
        return (errors or lines)[-_LOG_LINES_SHOWN:]

    def _end(self, command: bytes) -> None:
        """Have the supervisor end the broker, and wait until both are gone; bounded by 10 s plus a SIGKILL."""
        supervisor = self._supervisor
        if supervisor is None:
            return
        self._order(supervisor, command)
        try:
            supervisor.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._order(supervisor, b"k")
            try:
                supervisor.wait(timeout=_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # The kernel takes the broker along with its supervisor.
                supervisor.kill()
                supervisor.wait()
        self._forget()

    @staticmethod
    def _order(supervisor: subprocess.Popen[bytes], command: bytes) -> None:
        assert supervisor.stdin is not None
        try:
            supervisor.stdin.write(command)
            supervisor.stdin.flush()
        except BrokenPipeError:
            # It has ended already; waiting for it is all that is left to do.
            pass

    def _forget(self) -> None:
        """Let go of a supervisor that has ended, by order or by itself."""
        supervisor = self._supervisor
        if supervisor is not None and supervisor.stdin is not None:
            try:
                supervisor.stdin.close()
            except BrokenPipeError:
                pass
        self._supervisor = None
        self._pid = None
        self._is_paused = False


def new_cluster_id() -> str:
    """A random id: 16 bytes as URL-safe base64, but never with a "-" in front, which reads as a flag."""
    random = bytearray(uuid.uuid4().bytes)
    # The first character shows the upper six bits, and "-" is 62.
    random[0] &= 0x7F
    return base64.urlsafe_b64encode(random).decode().rstrip("=")


def check_settings(*, port: int | None, heap_mb: int, security: BrokerSecurity | None = None) -> None:
    """Raises `SettingsError` with all mistakes at once."""
    mistakes = security.mistakes() if security else []
    if port is not None and not 1 <= port <= 65535:
        mistakes.append(f"port {port} is not between 1 and 65535")
    if heap_mb < _HEAP_MB_MIN:
        mistakes.append(f"heap_mb {heap_mb} is below {_HEAP_MB_MIN}, the least that Kafka starts with")
    if mistakes:
        raise SettingsError("the development broker's settings", mistakes)
