"""What the development broker is told: its properties file, its logging, its optional security. Pure text.

Every node is broker and controller at once (KRaft mode) and listens on 127.0.0.1 alone. One node is made to start and
restart fast. Several nodes are there to see real changes of leaders and coordinators, at Kafka's own pace: all timeouts
that decide about those keep their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SASL_MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")
_SECURITY_PACKAGE = "org.apache.kafka.common.security"


@dataclass(frozen=True, kw_only=True)
class BrokerSecurity:
    """Listeners beside the plain one, for testing clients' security settings; not a way to protect anything.

    `sasl_users` (name → password) opens a SASL_PLAINTEXT listener with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, and
    OAUTHBEARER with unsecured tokens (`"alg": "none"`). `ssl_certificate_file` with `ssl_key_file` (PEM, PKCS#8 without
    a password) opens an SSL listener; with `ssl_client_ca_file` it demands a client certificate signed by that one.
    """

    sasl_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    ssl_certificate_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_client_ca_file: Path | None = None

    def mistakes(self) -> list[str]:
        found = []
        if (self.ssl_certificate_file is None) != (self.ssl_key_file is None):
            found.append("ssl_certificate_file and ssl_key_file belong together; only one is given")
        if self.ssl_client_ca_file is not None and self.ssl_certificate_file is None:
            found.append("ssl_client_ca_file needs ssl_certificate_file and ssl_key_file")
        for user, password in self.sasl_users.items():
            if set(user + password) & set("\"\\,=[] \t\r\n;'"):
                found.append(
                    f"sasl_users: the name or password of {user!r} holds a character that JAAS or SCRAM would split at"
                )
        return found

    @property
    def extra_listeners(self) -> tuple[str, ...]:
        sasl = ("SASL_PLAINTEXT",) if self.sasl_users else ()
        ssl = ("SSL",) if self.ssl_certificate_file else ()
        return (*sasl, *ssl)

    def scram_arguments(self) -> list[str]:
        """Arguments of the storage tool: SCRAM passwords live in the cluster's metadata from its first record on."""
        return [
            argument
            for user, password in self.sasl_users.items()
            for mechanism in SCRAM_MECHANISMS
            for argument in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
        ]


@dataclass(frozen=True, kw_only=True)
class ClusterPlace:
    """One node's place among several: all of them are the controller's quorum.

    `port` is of the plain listener; `controller_ports` are by node id, all nodes' and the own one.
    """

    node_id: int
    cluster_id: str
    port: int
    controller_ports: Mapping[int, int]

    @property
    def ports(self) -> dict[str, int]:
        """This node's ports by listener."""
        return {"PLAINTEXT": self.port, "CONTROLLER": self.controller_ports[self.node_id]}


def listener_names(security: BrokerSecurity | None) -> tuple[str, ...]:
    """Every listener that needs a port; the plain one comes first, the controller's second."""
    return ("PLAINTEXT", "CONTROLLER", *(security.extra_listeners if security else ()))


_FOR_EVERY_NODE = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL"
    ),
    "share.coordinator.state.topic.num.partitions": "1",
    # Nobody else is going to join the group of a single test's consumer.
    "group.initial.rebalance.delay.ms": "0",
    # A misspelt topic should be an error here, as it is in production.
    "auto.create.topics.enable": "false",
}

_FOR_ONE_NODE = {
    # There is one broker, so one replica of everything.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 50 each exists to spread coordinators over many brokers. On one broker it only means a hundred
    # log directories, made while the first transaction waits; 8 still spread a test's shards over several.
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    # A killed broker may register again only when its old session has ended: with the default of 9 s every test
    # that kills the broker would wait that long.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
}

# Kafka's defaults for its internal topics are 3 replicas of which 2 must have a record; users' topics get the same.
# Nothing here touches a timeout: sessions (9 s), elections and requests are as on a cluster in production.
_FOR_SEVERAL_NODES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    # Not 50 each, as above: every one of them changes its leader when a node goes. 6 are two for each node.
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}


def server_properties(
    *,
    log_directory: Path,
    ports: Mapping[str, int],
    place: ClusterPlace | None = None,
    security: BrokerSecurity | None = None,
    ssl_keystore_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """A node's properties for one start, for one among several with `place`; `overrides` win over everything else."""
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    advertised = [address for name, address in addresses.items() if name != "CONTROLLER"]
    node_id = place.node_id if place else 1
    controllers = place.controller_ports if place else {node_id: ports["CONTROLLER"]}
    properties = {
        **_FOR_EVERY_NODE,
        **(_FOR_SEVERAL_NODES if place else _FOR_ONE_NODE),
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in sorted(controllers.items())),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(advertised),
        "log.dirs": str(log_directory),
    }
    if security is not None:
        properties |= _security_properties(security, ssl_keystore_file)
    return properties | dict(overrides or {})


def _security_properties(security: BrokerSecurity, ssl_keystore_file: Path | None) -> dict[str, str]:
    properties: dict[str, str] = {}
    if security.sasl_users:
        properties |= _sasl_properties(security.sasl_users)
    if ssl_keystore_file is not None:
        properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(ssl_keystore_file)}
    if security.ssl_client_ca_file is not None:
        properties |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(security.ssl_client_ca_file),
            "ssl.client.auth": "required",
        }
    return properties


def _sasl_properties(users: Mapping[str, str]) -> dict[str, str]:
    listener = "listener.name.sasl_plaintext"
    credentials = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    scram = f"{_SECURITY_PACKAGE}.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": ",".join(SASL_MECHANISMS),
        f"{listener}.plain.sasl.jaas.config": f"{_SECURITY_PACKAGE}.plain.PlainLoginModule required {credentials};",
        **{f"{listener}.{mechanism.lower()}.sasl.jaas.config": scram for mechanism in SCRAM_MECHANISMS},
        f"{listener}.oauthbearer.sasl.jaas.config": (
            f'{_SECURITY_PACKAGE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """A Java properties file. Values are written as they are but for the backslash, which Java would eat."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in properties.items())


def logging_text(log_file: Path) -> str:
    """A log4j2 configuration: one file that cannot grow without bound, nothing on the terminal."""
    return f"""<Configuration status="WARN">
  <Appenders>
    <RollingFile name="file" fileName="{log_file}" filePattern="{log_file}.1">
      <PatternLayout pattern="%d{{ISO8601}} %-5p %c{{1}}: %m%n"/>
      <SizeBasedTriggeringPolicy size="16 MB"/>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="info"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""


def java_options(*, heap_mb: int, logging_file: Path) -> Sequence[str]:
    """Flags of the virtual machine: Kafka's own choice of collector; none that is newer than Java 21."""
    return (
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExitOnOutOfMemoryError",
        "--enable-native-access=ALL-UNNAMED",
        f"-Dlog4j2.configurationFile={logging_file}",
        # The log must still be written while Kafka's own shutdown hook runs; log4j's hook would close it first.
        "-Dlog4j.shutdownHookEnabled=false",
    )
