"""`millstream run` takes sensible settings from three places and refuses the others, all at once, before it starts."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.processor import run_command
from millstream.processor.cli import main
from millstream.processor.errors import SettingsError
from millstream.processor.participation import default_node_name
from millstream.processor.run_command import RunSettings

BROKERS = "--brokers=127.0.0.1:9"


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run_command.configure(parser)
    return parser.parse_args(arguments)


def settings(*arguments: str, environ: Mapping[str, str] | None = None) -> RunSettings:
    return run_command.settings_from(parse(*arguments), environ or {})[0]


def mistakes(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        settings(*arguments, environ=environ)
    return caught.value.mistakes


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "millstream.toml"


def test_all_but_the_program_and_the_cluster_has_a_default() -> None:
    found = settings("app.py", BROKERS)
    assert (found.app, found.workers, found.until, found.max_seconds) == ("app.py", 1, "stopped", None)
    assert found.kafka["brokers"] == ("127.0.0.1:9",)


def test_arguments_win_over_the_environment_and_that_over_the_file_and_that_over_defaults(config: Path) -> None:
    config.write_text(
        'app = "file.py"\nbrokers = ["file:1", "file:2"]\nworkers = 5\n'
        'log_level = "debug"\nssl_check_hostname = false\n'
    )
    environ = {"MILLSTREAM_WORKERS": "4", "MILLSTREAM_LOG_LEVEL": "warning", "MILLSTREAM_CONFIG": str(config)}
    found = settings("--workers=3", environ=environ)
    assert (found.workers, found.log_level, found.app, found.drain_timeout_s) == (3, "warning", "file.py", 20.0)
    assert found.kafka["brokers"] == ("file:1", "file:2")
    assert found.kafka["ssl_check_hostname"] is False


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--workers", "0"),
        ("--workers", "-1"),
        ("--workers", "2.5"),
        ("--workers", "100000"),
        ("--drain-timeout-s", "0"),
        ("--drain-timeout-s", "soon"),
        ("--max-seconds", "nan"),
        ("--max-seconds", "inf"),
        ("--until", "tomorrow"),
        ("--log-level", "loud"),
        ("--request-timeout-ms", "1e3"),
    ],
)
def test_a_senseless_value_is_refused_and_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "app.py", BROKERS, f"{option}={value}"]) == 2
    message = capsys.readouterr().err
    assert option in message
    assert repr(value) in message


def test_the_mistakes_of_all_places_are_reported_at_once(config: Path) -> None:
    config.write_text('wrokers = 4\nuntil = "cought-up"\nhttp = 9100\n[kafka]\nbrokers = "a:1"\n')
    environ = {
        "MILLSTREAM_DRAIN_TIMEOUT_S": "long",
        "MILLSTREAM_LOG_LEVLE": "debug",
        "MILLSTREAM_SERVICE_HOST": "10.0.0.1",
        "MILLSTREAM_SSL_CA_FILE": "/no/such.pem",
    }
    found = mistakes("--workers=many", f"--config={config}", environ=environ)
    expected = [
        "no pipeline is named",
        "--workers 'many': it must be a whole number from 1 to 1024",
        "MILLSTREAM_DRAIN_TIMEOUT_S='long'",
        f"{config}: until = \"cought-up\": use one of stopped, caught-up; did you mean 'caught-up'?",
        f"{config}: http = 9100: it must be a text",
        "no Kafka cluster is named",
        "ssl_ca_file '/no/such.pem' is given, but security_protocol PLAINTEXT does not use TLS",
        "unknown key 'wrokers'; did you mean 'workers'?",
        "unknown key 'kafka'",
        "unknown variable MILLSTREAM_LOG_LEVLE; did you mean MILLSTREAM_LOG_LEVEL?",
    ]
    for part in expected:
        assert any(part in mistake for mistake in found), (part, found)
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("workers = '4'", "must be a whole number"),
        ("workers = true", "must be a whole number"),
        ("workers = 1.5", "must be a whole number"),
        ("ssl_check_hostname = 'yes'", "true or false"),
        ("brokers = [1]", "a list of texts"),
        ("drain_timeout_s = [20]", "a number of seconds"),
        ("sasl_password = 5", "sasl_password must be a text"),
    ],
)
def test_a_value_of_another_type_in_the_file_is_refused(config: Path, text: str, part: str) -> None:
    config.write_text(text)
    found = mistakes("app.py", f"--config={config}")
    assert any(part in mistake for mistake in found), found


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"workers = ", "it is not TOML"), (b"\xff", "it is not UTF-8")]
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(config: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        config.write_bytes(content)
    found = mistakes("app.py", BROKERS, f"--config={config}")
    assert len(found) == 1
    assert str(config) in found[0]
    assert reason in found[0]


def test_a_secret_that_the_file_gives_twice_is_a_contradiction(config: Path) -> None:
    config.write_text('sasl_password = "hunter2"\nsasl_password_file = "/run/secret"\n')
    found = mistakes("app.py", BROKERS, f"--config={config}")
    assert any("sasl_password_file = '/run/secret' contradict" in mistake for mistake in found)
    assert not any("hunter2" in mistake for mistake in found)


def test_the_settings_in_effect_are_shown_with_their_origins_and_without_a_secret(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('sasl_username = "ada"\nsasl_password = "hunter2"\nsecurity_protocol = "SASL_SSL"\n')
    monkeypatch.setenv("MILLSTREAM_SASL_MECHANISM", "PLAIN")
    assert main(["run", "app.py", BROKERS, f"--config={config}", "--workers=2", "--show-settings"]) == 0
    captured = capsys.readouterr()
    lines = {line.split("#")[0].strip(): line.split("#", 1)[1].strip() for line in captured.out.splitlines()}
    assert lines["workers = 2"] == "--workers"
    assert lines['app = "app.py"'] == "APP"
    assert lines['sasl_username = "ada"'] == str(config)
    assert lines['sasl_password = "********"'] == str(config)
    assert lines['sasl_mechanism = "PLAIN"'] == "MILLSTREAM_SASL_MECHANISM"
    assert lines["drain_timeout_s = 20"] == "default"
    assert "hunter2" not in captured.out + captured.err


def test_a_secret_is_in_no_message_and_no_representation(config: Path) -> None:
    config.write_text('sasl_password = "hunter2"\n')
    found = mistakes("app.py", BROKERS, f"--config={config}")
    assert any("sasl_password" in mistake for mistake in found)
    assert "hunter2" not in str(found)
    login = ("--security-protocol=SASL_SSL", "--sasl-mechanism=PLAIN", "--sasl-username=ada")
    assert "hunter2" not in repr(settings("app.py", BROKERS, *login, f"--config={config}"))


def test_a_taken_http_address_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["run", "app.py", BROKERS, f"--http={address}"]) == 2
    message = capsys.readouterr().err
    assert address in message
    assert "cannot listen there" in message


def test_the_example_of_the_operations_page_is_good_but_for_its_password_file(config: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    password = config.with_name("password")
    password.write_text("hunter2\n")
    config.write_text(example.replace("/run/secrets/kafka-password", str(password)))
    found = settings(f"--config={config}")
    assert (found.workers, found.http, found.kafka["sasl_password"]) == (4, "0.0.0.0:9100", "hunter2")


def test_a_node_says_who_it_is_and_where(config: Path) -> None:
    found = settings("app.py", BROKERS, "--node-name=web-1", "--zone=a", "--labels=gpu, big").place
    assert (found.name, found.zone, found.labels) == ("web-1", "a", ("gpu", "big"))
    config.write_text('labels = ["gpu", "big"]\nzone = "b"\n')
    found = settings("app.py", BROKERS, f"--config={config}").place
    assert (found.zone, found.labels) == ("b", ("gpu", "big"))
    assert found.name == default_node_name()


def test_names_that_could_be_in_no_ledger_or_metric_are_refused() -> None:
    found = mistakes("app.py", BROKERS, "--node-name=a b", "--zone=", "--labels=gpu,,big")
    assert [mistake.split(":")[0] for mistake in found] == [
        "--node-name 'a b'",
        "--zone ''",
        "--labels 'gpu,,big'",
    ]


def test_a_drain_may_be_shorter_than_any_wait_between_nodes() -> None:
    assert settings("app.py", BROKERS, "--drain-timeout-s=0.5").drain_timeout_s == 0.5
