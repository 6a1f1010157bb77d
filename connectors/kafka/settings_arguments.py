"""Kafka settings from the command line and the environment, for every command that talks to a cluster.

Each flag has an environment variable: `--ssl-ca-file` is also `MILLSTREAM_SSL_CA_FILE`. The flag wins. Secrets have no
flag, since arguments are visible to every user of a machine: they come from a file or from the environment.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from millstream.connectors.kafka.settings import (
    SASL_MECHANISMS,
    SECURITY_PROTOCOLS,
    KafkaSettings,
    split_brokers,
)
from millstream.processor.errors import SettingsError

T = TypeVar("T")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `kafka_settings_from` reads."""
    group = parser.add_argument_group(
        "Kafka cluster", "each of these may also come from the environment, as in MILLSTREAM_BROKERS"
    )
    group.add_argument("--brokers", metavar="HOST:PORT,...", help="brokers to ask first")
    group.add_argument("--client-id", metavar="NAME", help="the name that brokers see (millstream)")
    group.add_argument("--request-timeout-ms", metavar="MS", type=int, help="bound of one request (10000)")
    group.add_argument("--connect-timeout-ms", metavar="MS", type=int, help="bound of the first connection (30000)")
    group.add_argument("--security-protocol", choices=SECURITY_PROTOCOLS, help="(PLAINTEXT)")
    group.add_argument("--ssl-ca-file", metavar="PEM", type=Path, help="whom to trust (the system's authorities)")
    group.add_argument("--ssl-certificate-file", metavar="PEM", type=Path, help="our own certificate")
    group.add_argument("--ssl-key-file", metavar="PEM", type=Path, help="our certificate's key")
    group.add_argument(
        "--ssl-key-password-file", metavar="FILE", type=Path, help="or MILLSTREAM_SSL_KEY_PASSWORD in the environment"
    )
    group.add_argument(
        "--ssl-check-hostname", action=argparse.BooleanOptionalAction, help="the certificate must name the host (yes)"
    )
    group.add_argument("--sasl-mechanism", choices=SASL_MECHANISMS)
    group.add_argument("--sasl-username", metavar="NAME")
    group.add_argument(
        "--sasl-password-file", metavar="FILE", type=Path, help="or MILLSTREAM_SASL_PASSWORD in the environment"
    )
    group.add_argument("--sasl-token-file", metavar="FILE", type=Path, help="token for OAUTHBEARER, read at each login")


def names_brokers(arguments: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Whether the user named a cluster; if not, a command may start a development broker."""
    return bool(arguments.brokers or environ.get("MILLSTREAM_BROKERS"))


def kafka_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """The flags that were given, as the environment variables that mean the same, for a program that is started."""
    flags = argparse.ArgumentParser()
    add_kafka_arguments(flags)
    given = {name: getattr(arguments, name) for name in vars(flags.parse_args([]))}
    return {
        f"MILLSTREAM_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value is not None
    }


def kafka_settings_from(
    arguments: argparse.Namespace, environ: Mapping[str, str], *, default_brokers: str | None = None
) -> KafkaSettings:
    """The cluster that the user named, or `default_brokers`. Raises `SettingsError` with every mistake of its step."""
    reading = _Reading(arguments, environ)
    brokers = reading.value("brokers", str) or default_brokers
    values: dict[str, Any] = {
        "brokers": split_brokers(brokers or ""),
        "security_protocol": reading.value("security_protocol", str),
        "ssl_ca_file": reading.value("ssl_ca_file", Path),
        "ssl_certificate_file": reading.value("ssl_certificate_file", Path),
        "ssl_key_file": reading.value("ssl_key_file", Path),
        "ssl_key_password": reading.secret("ssl_key_password"),
        "ssl_check_hostname": reading.value("ssl_check_hostname", _word),
        "sasl_mechanism": reading.value("sasl_mechanism", str),
        "sasl_username": reading.value("sasl_username", str),
        "sasl_password": reading.secret("sasl_password"),
        "client_id": reading.value("client_id", str),
        "request_timeout_ms": reading.value("request_timeout_ms", int),
        "connect_timeout_ms": reading.value("connect_timeout_ms", int),
    }
    token_file = reading.value("sasl_token_file", Path)
    if not brokers:
        reading.mistakes.append(
            "no Kafka cluster is named; give --brokers host:port or MILLSTREAM_BROKERS "
            "(`millstream broker` starts one for development)"
        )
    if reading.mistakes:
        raise SettingsError("the Kafka settings", reading.mistakes)
    if token_file is not None:
        # Imported here because aiokafka takes a while to load, and few logins use a token.
        from millstream.connectors.kafka.token_file import TokenFile

        values["sasl_token_provider"] = TokenFile(token_file)
    return KafkaSettings(**{name: value for name, value in values.items() if value is not None})


class _Reading:
    """Looks each value up, flag first, and collects what cannot be read."""

    def __init__(self, arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._environ = environ
        self.mistakes: list[str] = []

    def value(self, name: str, convert: Callable[[str], T]) -> T | None:
        given: T | None = getattr(self._arguments, name)
        if given is not None:
            return given
        variable = f"MILLSTREAM_{name.upper()}"
        text = self._environ.get(variable)
        if not text:
            return None
        try:
            return convert(text)
        except ValueError as error:
            self.mistakes.append(f"{variable}={text!r}: {error}")
            return None

    def secret(self, name: str) -> str | None:
        """From the file of `--<name>-file`, else from the environment. Never part of a message."""
        file = self.value(f"{name}_file", Path)
        if file is None:
            return self._environ.get(f"MILLSTREAM_{name.upper()}")
        try:
            return file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self.mistakes.append(f"{name}_file {str(file)!r} cannot be read: {reason}")
            return None


def _word(text: str) -> bool:
    try:
        return _WORDS[text.lower()]
    except KeyError:
        raise ValueError(f"use one of {', '.join(_WORDS)}") from None
