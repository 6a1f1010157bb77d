"""Records at which a stage hangs, on a real Kafka: they are dead-lettered, and everything else comes out once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from outside import Message, Outside

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

PATIENCE_S = 150.0
PARTITIONS = 4
COUNT = 3000
# In different shards, and two of them in one batch.
POISON = {(0, 1700), (2, 40), (2, 41)}
APP = """
import asyncio, time
from millstream.processor import OnError, Pipeline

async def slow(value: bytes) -> bytes:
    if value.startswith(b"2-40-"):
        await asyncio.Event().wait()
    return value

def score(value: bytes) -> bytes:
    if value.endswith(b"-poison"):
        time.sleep(3600)
    return value

pipeline = Pipeline("{name}", shards=4, on_error=OnError.dead_letter(), missing_topics="create", stage_timeout_s=1.0)
pipeline.read("{name}-in").map(slow, name="slow").map(score, name="score").write("{name}-out")
"""


def value_of(partition: int, number: int) -> bytes:
    return f"{partition}-{number}-{'poison' if (partition, number) in POISON else 'good'}".encode()


def values(messages: list[Message]) -> list[bytes]:
    return [message.value or b"" for message in messages]


def test_records_at_which_a_stage_hangs_are_dead_lettered_and_all_others_come_out_once(
    outside: Outside, tmp_path: Path
) -> None:
    name = outside.unique("hanging")
    source = outside.topic("hanging-in", PARTITIONS)
    app = tmp_path / "app.py"
    app.write_text(APP.replace("{name}-in", source).replace("{name}", name))
    for partition in range(PARTITIONS):
        sent = [(b"k", value_of(partition, number)) for number in range(COUNT)]
        outside.send(source, sent, partition=partition)
    run = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())", "run"]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        arguments = [*run, str(app), f"--brokers={outside.bootstrap}", "--workers=2", "--until=caught-up"]
        ended = subprocess.run(arguments, stderr=stderr, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, log.read_text()

    good = {(p, n) for p in range(PARTITIONS) for n in range(COUNT)} - POISON
    written = values(outside.read(f"{name}-out"))
    assert sorted(written) == sorted(value_of(*place) for place in good)
    for partition in range(PARTITIONS):
        numbers = [int(value.split(b"-")[1]) for value in written if value.startswith(b"%d-" % partition)]
        assert numbers == sorted(numbers)
    letters = outside.read(f"{name}.dead-letters")
    assert sorted(values(letters)) == sorted(value_of(*place) for place in POISON)
    for letter in letters:
        headers = {key.removeprefix("millstream.error."): value for key, value in letter.headers}
        assert headers["type"] == b"StalledError"
        assert headers["stage"] == (b"slow" if (letter.value or b"").startswith(b"2-40-") else b"score")
        assert int(headers["attempts"] or b"0") >= 3
    assert "stage 'score' did not come back within 1 s" in log.read_text()
    assert 'app.py", line' in log.read_text(), "the stack shows where it hung"
