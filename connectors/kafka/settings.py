"""How to reach a Kafka cluster: addresses, TLS, SASL, timeouts.

`KafkaSettings` is checked when it is made, and reports every mistake at once. It speaks both clients' dialects: our
connections are aiokafka's, the independent reader and writer are confluent-kafka's. Command line and
environment are read by `settings_arguments.py`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.processor.errors import SettingsError
from millstream.processor.setting_sources import MASK

if TYPE_CHECKING:
    from aiokafka.abc import AbstractTokenProvider

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SASL_MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
# librdkafka asks again before a token's life ends; a provider does not tell the life, so assume a short one.
_TOKEN_LIFE_S = 60


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """A checked description of a cluster and of how to connect to it.

    Raises `SettingsError` with all mistakes: malformed addresses, unknown protocols or mechanisms, credentials that
    are missing or that the protocol would not use, files that are not there.
    """

    brokers: tuple[str, ...]
    security_protocol: str = "PLAINTEXT"
    ssl_ca_file: Path | None = None
    ssl_certificate_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_token_provider: AbstractTokenProvider | None = field(default=None, repr=False)
    client_id: str = "millstream"
    request_timeout_ms: int = 10_000
    """How long one request may stay unanswered."""
    connect_timeout_ms: int = 30_000
    """How long a start keeps looking for the first broker that answers."""

    def __post_init__(self) -> None:
        if mistakes := [*_address_mistakes(self), *_tls_mistakes(self), *_sasl_mistakes(self), *_other_mistakes(self)]:
            raise SettingsError("the Kafka settings", mistakes)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each broker; an IPv6 host stands without its brackets."""
        return tuple(parse_address(broker) for broker in self.brokers)

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def connection_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `aiokafka.conn.create_conn`. Certificates are read anew when their files have changed.

        Raises `SettingsError` when a certificate or key cannot be loaded.
        """
        return {
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "security_protocol": self.security_protocol,
            "ssl_context": self._ssl_context() if self.uses_tls else None,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
            "sasl_oauth_token_provider": self.sasl_token_provider,
        }

    def confluent_arguments(self) -> dict[str, Any]:
        """Configuration of a confluent-kafka client (librdkafka) that reaches the same cluster in the same way."""
        arguments: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.brokers),
            "client.id": self.client_id,
            "security.protocol": self.security_protocol,
            "socket.timeout.ms": self.request_timeout_ms,
        }
        if self.uses_tls:
            arguments["ssl.endpoint.identification.algorithm"] = "https" if self.ssl_check_hostname else "none"
            arguments |= _present(
                {
                    "ssl.ca.location": self.ssl_ca_file,
                    "ssl.certificate.location": self.ssl_certificate_file,
                    "ssl.key.location": self.ssl_key_file,
                    "ssl.key.password": self.ssl_key_password,
                }
            )
        if self.uses_sasl:
            arguments["sasl.mechanism"] = self.sasl_mechanism
            arguments |= _present({"sasl.username": self.sasl_username, "sasl.password": self.sasl_password})
        if self.uses_sasl and self.sasl_token_provider is not None:
            arguments["oauth_cb"] = _token_callback(self.sasl_token_provider)
        return arguments

    def to_json(self) -> dict[str, Any]:
        """All settings, secrets included, as JSON can carry them to a process that `from_json` makes them in.

        Raises `SettingsError` for a token provider other than a file: code does not travel.
        """
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sasl_token_provider"}
        values = {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}
        if self.sasl_token_provider is not None:
            file = getattr(self.sasl_token_provider, "file", None)
            if file is None:
                raise SettingsError("the Kafka settings", ["worker processes need a token file, not a token provider"])
            values["sasl_token_file"] = str(file)
        return values

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> KafkaSettings:
        """The settings that `to_json` was called on."""
        arguments = dict(values)
        arguments["brokers"] = tuple(arguments["brokers"])
        for name in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file"):
            if arguments.get(name) is not None:
                arguments[name] = Path(arguments[name])
        token_file = arguments.pop("sasl_token_file", None)
        if token_file is not None:
            from millstream.connectors.kafka.token_file import TokenFile

            arguments["sasl_token_provider"] = TokenFile(Path(token_file))
        return KafkaSettings(**arguments)

    def _ssl_context(self) -> ssl.SSLContext:
        files = (self.ssl_ca_file, self.ssl_certificate_file, self.ssl_key_file)
        try:
            # A renewed certificate is taken up by the next connection; unchanged files cost a stat each.
            changed_ns = tuple(file.stat().st_mtime_ns for file in files if file is not None)
            return _load_ssl_context(*files, self.ssl_key_password, self.ssl_check_hostname, changed_ns)
        except (OSError, ValueError) as error:
            names = ", ".join(str(file) for file in files if file is not None)
            raise SettingsError("the Kafka settings", [f"TLS files {names} cannot be loaded: {error}"]) from error


def split_brokers(text: str) -> tuple[str, ...]:
    """`"a:9092, b:9092"` as a tuple of addresses."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[IPv6]:port`. Raises ValueError with the remedy."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets, as in [::1]:9092")
    if not colon or not host or any(character.isspace() or character in "/[]" for character in host):
        raise ValueError("it should read host:port, as in localhost:9092")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"the port {port!r} is not a number between 1 and 65535")
    return host, int(port)


def _address_mistakes(settings: KafkaSettings) -> Iterator[str]:
    brokers: object = settings.brokers
    if isinstance(brokers, str):
        yield f"brokers is the text {brokers!r}; give a tuple of addresses, as in ({brokers!r},)"
        return
    if not settings.brokers:
        yield "brokers is empty; name at least one broker as host:port"
    for broker in settings.brokers:
        try:
            parse_address(broker)
        except ValueError as error:
            yield f"broker {broker!r}: {error}"


def _tls_mistakes(settings: KafkaSettings) -> Iterator[str]:
    if settings.security_protocol not in SECURITY_PROTOCOLS:
        yield f"security_protocol {settings.security_protocol!r} is unknown; use one of {', '.join(SECURITY_PROTOCOLS)}"
        return
    files = {
        "ssl_ca_file": settings.ssl_ca_file,
        "ssl_certificate_file": settings.ssl_certificate_file,
        "ssl_key_file": settings.ssl_key_file,
    }
    for name, file in files.items():
        if file is None:
            continue
        if not settings.uses_tls:
            yield f"{name} {str(file)!r} is given, but security_protocol {settings.security_protocol} does not use TLS"
        elif not file.is_file():
            yield f"{name} {str(file)!r} is not a file"
    if settings.ssl_key_file is not None and settings.ssl_certificate_file is None:
        yield "ssl_key_file needs ssl_certificate_file: a key says nothing without its certificate"
    if settings.ssl_certificate_file is not None and settings.ssl_key_file is None:
        yield "ssl_certificate_file needs ssl_key_file"
    if settings.ssl_key_password is not None and settings.ssl_key_file is None:
        yield "ssl_key_password is given without ssl_key_file"


def _sasl_mistakes(settings: KafkaSettings) -> Iterator[str]:
    if settings.security_protocol not in SECURITY_PROTOCOLS:
        # The protocol's own mistake is reported already; what it would use cannot be known.
        return
    mechanism = settings.sasl_mechanism
    if not settings.uses_sasl:
        given = [
            f"{name} {MASK if name == 'sasl_password' else getattr(settings, name)!r}"
            for name in ("sasl_mechanism", "sasl_username", "sasl_password")
            if getattr(settings, name)
        ]
        if given:
            yield (
                f"{', '.join(given)} given, but security_protocol {settings.security_protocol} does not log in; "
                "use SASL_SSL (or SASL_PLAINTEXT)"
            )
    elif mechanism not in SASL_MECHANISMS:
        yield f"sasl_mechanism {mechanism!r} is unknown; use one of {', '.join(SASL_MECHANISMS)}"
    elif mechanism == "OAUTHBEARER":
        if settings.sasl_token_provider is None:
            yield "sasl_mechanism OAUTHBEARER needs a sasl_token_provider (on the command line: --sasl-token-file)"
    else:
        for name in ("sasl_username", "sasl_password"):
            if not getattr(settings, name):
                yield f"sasl_mechanism {mechanism} needs a {name}"


def _other_mistakes(settings: KafkaSettings) -> Iterator[str]:
    if not settings.client_id:
        yield "client_id is empty"
    for name in ("request_timeout_ms", "connect_timeout_ms"):
        if (value := getattr(settings, name)) <= 0:
            yield f"{name} {value} is not above 0"


@lru_cache(maxsize=8)
def _load_ssl_context(
    ca_file: Path | None,
    certificate_file: Path | None,
    key_file: Path | None,
    key_password: str | None,
    check_hostname: bool,
    changed_ns: tuple[int, ...],  # noqa: ARG001 - part of the cache's key: changed files are loaded anew
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = check_hostname
    if certificate_file is not None:
        # Without a password OpenSSL would ask on the terminal for an encrypted key's, and a service would hang.
        context.load_cert_chain(certificate_file, key_file, key_password or "")
    return context


def _present(values: dict[str, Path | str | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _token_callback(provider: AbstractTokenProvider) -> Callable[[str], tuple[str, float]]:
    """The provider as librdkafka wants it: a plain function that answers a token and when to stop using it.

    It may be called from within a running event loop's thread, so the coroutine gets a thread and a loop of its own.
    """

    def token(_: str) -> tuple[str, float]:
        with ThreadPoolExecutor(1, thread_name_prefix="kafka-token") as pool:
            answer: str = pool.submit(lambda: asyncio.run(provider.token())).result()
        return answer, time.time() + _TOKEN_LIFE_S

    return token
