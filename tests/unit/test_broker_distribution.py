"""A cache of Kafka's jars is trusted only when it is whole."""

from __future__ import annotations

import json
from pathlib import Path

from millstream.connectors.kafka.broker_distribution import KAFKA_VERSION, _cached_jars


def cache(directory: Path) -> Path:
    jars = {"a.jar": b"first", "b.jar": b"second"}
    for name, content in jars.items():
        (directory / name).write_bytes(content)
    (directory / "manifest.json").write_text(json.dumps({name: len(content) for name, content in jars.items()}))
    return directory


def test_a_whole_cache_answers_its_jars(tmp_path: Path) -> None:
    assert _cached_jars(cache(tmp_path)) == (tmp_path / "a.jar", tmp_path / "b.jar")


def test_a_truncated_a_missing_and_an_unlisted_set_are_not_trusted(tmp_path: Path) -> None:
    assert _cached_jars(tmp_path) is None
    cache(tmp_path)
    (tmp_path / "b.jar").write_bytes(b"sec")
    assert _cached_jars(tmp_path) is None
    (tmp_path / "b.jar").unlink()
    assert _cached_jars(tmp_path) is None
    (cache(tmp_path) / "manifest.json").write_text("{")
    assert _cached_jars(tmp_path) is None


def test_the_release_is_one_with_the_transactions_that_we_speak() -> None:
    assert tuple(map(int, KAFKA_VERSION.split("."))) >= (4, 0, 0)
