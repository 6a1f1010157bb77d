"""Kafka settings from the command line, the environment and a TOML file, for every command that talks to a cluster.

Each flag has an environment variable: `--ssl-ca-file` is also `MILLSTREAM_SSL_CA_FILE`. Secrets have no flag, since
arguments are visible to every user of a machine: they come from a file or from the environment.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from millstream.connectors.kafka.settings import (
    SASL_MECHANISMS,
    SECURITY_PROTOCOLS,
    KafkaSettings,
    split_brokers,
)
from millstream.processor.errors import SettingsError
from millstream.processor.setting_sources import LIST, PATH, SWITCH, TEXT, Sources, whole

_MS: Final = whole(1)
_DEFAULTS: Final = KafkaSettings(brokers=("localhost:9092",))


def add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `kafka_settings_from` reads. Their values are texts, to be checked with all others."""
    group = parser.add_argument_group(
        "Kafka cluster", "each of these may also come from the environment, as in MILLSTREAM_BROKERS"
    )
    group.add_argument("--brokers", metavar="HOST:PORT,...", help="brokers to ask first")
    group.add_argument("--client-id", metavar="NAME", help="the name that brokers see (millstream)")
    group.add_argument("--request-timeout-ms", metavar="MS", help="bound of one request (10000)")
    group.add_argument("--connect-timeout-ms", metavar="MS", help="bound of the first connection (30000)")
    group.add_argument("--security-protocol", metavar="PROTOCOL", help=f"{', '.join(SECURITY_PROTOCOLS)} (PLAINTEXT)")
    group.add_argument("--ssl-ca-file", metavar="PEM", help="whom to trust (the system's authorities)")
    group.add_argument("--ssl-certificate-file", metavar="PEM", help="our own certificate")
    group.add_argument("--ssl-key-file", metavar="PEM", help="our certificate's key")
    group.add_argument(
        "--ssl-key-password-file", metavar="FILE", help="or MILLSTREAM_SSL_KEY_PASSWORD in the environment"
    )
    group.add_argument(
        "--ssl-check-hostname", action=argparse.BooleanOptionalAction, help="the certificate must name the host (yes)"
    )
    group.add_argument("--sasl-mechanism", metavar="MECHANISM", help=", ".join(SASL_MECHANISMS))
    group.add_argument("--sasl-username", metavar="NAME")
    group.add_argument("--sasl-password-file", metavar="FILE", help="or MILLSTREAM_SASL_PASSWORD in the environment")
    group.add_argument("--sasl-token-file", metavar="FILE", help="token for OAUTHBEARER, read at each login")


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
    """The cluster that the user named, or `default_brokers`. Raises `SettingsError` with every mistake."""
    sources = Sources(arguments, environ)
    settings = read_kafka_settings(sources, default_brokers=default_brokers)
    sources.check("the Kafka settings")
    assert settings is not None
    return settings


def read_kafka_settings(sources: Sources, *, default_brokers: str | None = None) -> KafkaSettings | None:
    """The cluster by these sources. None where there are mistakes, which the sources then have."""
    before = len(sources.mistakes)
    brokers = sources.value("brokers", LIST, default_brokers)
    values: dict[str, Any] = {
        "security_protocol": sources.value("security_protocol", TEXT, _DEFAULTS.security_protocol),
        "ssl_ca_file": sources.value("ssl_ca_file", PATH),
        "ssl_certificate_file": sources.value("ssl_certificate_file", PATH),
        "ssl_key_file": sources.value("ssl_key_file", PATH),
        "ssl_key_password": sources.secret("ssl_key_password"),
        "ssl_check_hostname": sources.value("ssl_check_hostname", SWITCH, _DEFAULTS.ssl_check_hostname),
        "sasl_mechanism": sources.value("sasl_mechanism", TEXT),
        "sasl_username": sources.value("sasl_username", TEXT),
        "sasl_password": sources.secret("sasl_password"),
    }
    token_file = sources.value("sasl_token_file", PATH)
    is_security_known = len(sources.mistakes) == before
    values |= {
        "client_id": sources.value("client_id", TEXT, _DEFAULTS.client_id),
        "request_timeout_ms": sources.value("request_timeout_ms", _MS, _DEFAULTS.request_timeout_ms),
        "connect_timeout_ms": sources.value("connect_timeout_ms", _MS, _DEFAULTS.connect_timeout_ms),
    }
    if not brokers:
        sources.mistakes.append(
            "no Kafka cluster is named; give --brokers host:port or MILLSTREAM_BROKERS "
            "(`millstream broker` starts one for development)"
        )
    if token_file is not None:
        values["sasl_token_provider"] = _token_provider(token_file)
    # What follows from a mistake is not reported as another one.
    if is_security_known:
        try:
            settings = KafkaSettings(brokers=split_brokers(brokers) if brokers else _DEFAULTS.brokers, **values)
        except SettingsError as error:
            sources.mistakes.extend(error.mistakes)
        else:
            return settings if len(sources.mistakes) == before else None
    return None


def _token_provider(file: Path) -> object:
    # Imported here because aiokafka takes a while to load, and few logins use a token.
    from millstream.connectors.kafka.token_file import TokenFile

    return TokenFile(file)
