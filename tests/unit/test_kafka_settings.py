"""Kafka settings report every mistake at once, hide secrets, and say the same thing to both client libraries."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider

from millstream.connectors.kafka.settings import KafkaSettings, parse_address, split_brokers
from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from, names_brokers
from millstream.connectors.kafka.token_file import TokenFile
from millstream.processor.errors import RefusedError, SettingsError


class Token(AbstractTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return "a-token"


def mistakes(**values: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        KafkaSettings(**{"brokers": ("localhost:9092",), **values})
    return caught.value.mistakes


def settings_from(*arguments: str, environ: Mapping[str, str] | None = None) -> KafkaSettings:
    parser = argparse.ArgumentParser()
    add_kafka_arguments(parser)
    return kafka_settings_from(parser.parse_args(arguments), environ or {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("[::1]:9092", ("::1", 9092)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert KafkaSettings(brokers=(text,)).addresses == (address,)


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "localhost:",
        ":9092",
        "::1:9092",
        "[]:9092",
        "a b:9092",
        "a:0",
        "a:65536",
        "a:x",
        "a:²",
        "http://a:9092",
        "",
    ],
)
def test_a_malformed_address_is_named_in_the_mistake(text: str) -> None:
    (mistake,) = mistakes(brokers=(text,))
    assert repr(text) in mistake


def test_a_list_of_brokers_may_hold_spaces_and_a_trailing_comma() -> None:
    assert split_brokers(" a:1, b:2 ,") == ("a:1", "b:2")


def test_a_text_in_place_of_a_tuple_of_brokers_is_one_mistake() -> None:
    (mistake,) = mistakes(brokers="localhost:9092")
    assert "('localhost:9092',)" in mistake


def test_no_brokers_at_all_is_a_mistake() -> None:
    assert len(mistakes(brokers=())) == 1


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    found = mistakes(
        brokers=("nowhere", "[::1]:9092", "b:0"),
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        ssl_ca_file=tmp_path / "missing.pem",
        ssl_key_file=tmp_path,
        client_id="",
        request_timeout_ms=0,
    )
    for part in (
        "'nowhere'", "'b:0'", "missing.pem", "ssl_key_file", "ssl_certificate_file", "sasl_username", "sasl_password",
        "client_id", "request_timeout_ms",
    ):  # fmt: skip
        assert any(part in mistake for mistake in found), part


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"security_protocol": "TLS"}, "'TLS'"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "'GSSAPI'"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism None"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "sasl_token_provider"),
        ({"ssl_key_password": "secret"}, "ssl_key_password"),
    ],
)
def test_a_setting_without_its_counterpart_is_a_mistake(values: dict[str, Any], named: str) -> None:
    (mistake,) = mistakes(**values)
    assert named in mistake
    assert "secret" not in mistake


def test_credentials_that_the_protocol_would_not_use_are_refused() -> None:
    (mistake,) = mistakes(sasl_mechanism="PLAIN", sasl_username="ada", sasl_password="hunter2")
    assert "PLAINTEXT" in mistake
    assert "hunter2" not in mistake


def test_secrets_do_not_appear_in_the_representation(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    settings = KafkaSettings(
        brokers=("a:1",),
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="ada",
        sasl_password="hunter2",
        ssl_certificate_file=key,
        ssl_key_file=key,
        ssl_key_password="opensesame",
    )
    assert "hunter2" not in repr(settings)
    assert "opensesame" not in repr(settings)
    assert "ada" in repr(settings)


def test_both_clients_are_told_the_same_login() -> None:
    settings = KafkaSettings(
        brokers=("a:1", "b:2"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="ada",
        sasl_password="hunter2",
    )
    ours = settings.connection_arguments()
    assert (ours["sasl_mechanism"], ours["sasl_plain_username"], ours["sasl_plain_password"]) == (
        "SCRAM-SHA-512", "ada", "hunter2",
    )  # fmt: skip
    assert ours["ssl_context"] is None
    theirs = settings.confluent_arguments()
    assert theirs["bootstrap.servers"] == "a:1,b:2"
    assert (theirs["sasl.mechanism"], theirs["sasl.username"], theirs["sasl.password"]) == (
        "SCRAM-SHA-512", "ada", "hunter2",
    )  # fmt: skip


async def test_a_token_provider_serves_librdkafka_even_from_a_running_loop() -> None:
    settings = KafkaSettings(
        brokers=("a:1",), security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_token_provider=Token()
    )
    token, _ = settings.confluent_arguments()["oauth_cb"]("")
    assert token == "a-token"


def test_settings_travel_to_another_process() -> None:
    settings = KafkaSettings(brokers=("a:1",), security_protocol="SSL", ssl_check_hostname=False)
    assert settings.connection_arguments()["ssl_context"].check_hostname is False
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_damaged_certificate_is_reported_with_its_file(tmp_path: Path) -> None:
    damaged = tmp_path / "ca.pem"
    damaged.write_text("not a certificate")
    settings = KafkaSettings(brokers=("a:1",), security_protocol="SSL", ssl_ca_file=damaged)
    with pytest.raises(SettingsError, match=r"ca\.pem"):
        settings.connection_arguments()


def test_a_flag_wins_over_the_environment() -> None:
    environ = {"MILLSTREAM_BROKERS": "env:1", "MILLSTREAM_CLIENT_ID": "from-env", "MILLSTREAM_REQUEST_TIMEOUT_MS": "7"}
    settings = settings_from("--brokers", "flag:2", environ=environ)
    assert settings.brokers == ("flag:2",)
    assert settings.client_id == "from-env"
    assert settings.request_timeout_ms == 7


def test_without_flags_and_environment_the_defaults_hold() -> None:
    assert settings_from("--brokers", "a:1") == KafkaSettings(brokers=("a:1",))


def test_the_password_comes_from_a_file_or_the_environment_and_the_file_wins(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from file \n")
    login = [
        "--brokers",
        "a:1",
        "--security-protocol",
        "SASL_SSL",
        "--sasl-mechanism",
        "PLAIN",
        "--sasl-username",
        "ada",
    ]
    environ = {"MILLSTREAM_SASL_PASSWORD": "from-env"}
    assert settings_from(*login, environ=environ).sasl_password == "from-env"
    assert settings_from(*login, "--sasl-password-file", str(file), environ=environ).sasl_password == "from file "


def test_unreadable_values_of_the_environment_are_reported_together(tmp_path: Path) -> None:
    environ = {
        "MILLSTREAM_REQUEST_TIMEOUT_MS": "soon",
        "MILLSTREAM_SSL_CHECK_HOSTNAME": "perhaps",
        "MILLSTREAM_SASL_PASSWORD_FILE": str(tmp_path / "missing"),
    }
    with pytest.raises(SettingsError) as caught:
        settings_from(environ=environ)
    named = ("REQUEST_TIMEOUT_MS='soon'", "SSL_CHECK_HOSTNAME='perhaps'", "missing", "--brokers")
    assert len(caught.value.mistakes) == len(named)
    for part in named:
        assert any(part in mistake for mistake in caught.value.mistakes), part


def test_host_names_are_checked_unless_the_user_says_otherwise() -> None:
    tls = ("--brokers", "a:1", "--security-protocol", "SSL")
    assert settings_from(*tls).ssl_check_hostname
    assert not settings_from(*tls, "--no-ssl-check-hostname").ssl_check_hostname
    assert not settings_from(*tls, environ={"MILLSTREAM_SSL_CHECK_HOSTNAME": "no"}).ssl_check_hostname


def test_a_command_can_tell_whether_a_cluster_was_named() -> None:
    parser = argparse.ArgumentParser()
    add_kafka_arguments(parser)
    assert names_brokers(parser.parse_args(["--brokers", "a:1"]), {})
    assert names_brokers(parser.parse_args([]), {"MILLSTREAM_BROKERS": "a:1"})
    assert not names_brokers(parser.parse_args([]), {})


async def test_a_token_file_is_read_for_each_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    provider = settings_from(
        "--brokers", "a:1", "--security-protocol", "SASL_SSL", "--sasl-mechanism", "OAUTHBEARER",
        "--sasl-token-file", str(file),
    ).sasl_token_provider  # fmt: skip
    assert isinstance(provider, TokenFile)
    assert await provider.token() == "first"
    file.write_text("second")
    assert await provider.token() == "second"
    file.unlink()
    with pytest.raises(RefusedError, match="token"):
        await provider.token()
