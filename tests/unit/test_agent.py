"""A node with real processes and a host that needs no Kafka: it keeps every shard served, and it ends when told to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from memory_membership import MemoryMembership

from millstream.processor.actions import Outcome
from millstream.processor.agent import Agent, HostFactory
from millstream.processor.errors import RefusedError, SettingsError
from millstream.processor.http import bind
from millstream.processor.ledger import CreatedRecord, encode
from millstream.processor.membership_log import MembershipLog
from millstream.processor.node_settings import NodeSettings
from millstream.processor.participation import NodePlace
from millstream.processor.restarts import RestartPolicy
from millstream.processor.timings import Timings

# Everything here takes milliseconds on an idle machine; the bound only says that it happens at all.
PATIENCE_S = 30.0
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def workers_find_the_fake_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


async def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.01)


class Node:
    """An agent under test, with the directory where its fake hosts keep journal and faults."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self.agent = agent
        self.directory = directory
        self.outcome: Outcome | None = None

    def fault(self, name: str) -> None:
        (self.directory / name).touch()

    def journal(self) -> list[list[str]]:
        path = self.directory / "journal"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def worker(self, number: int) -> dict[str, Any]:
        worker: dict[str, Any] = self.agent.status()["workers"][number]
        return worker

    def shards(self) -> list[list[int]]:
        return [worker["shards"] for worker in self.agent.status()["workers"]]

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.agent.status()["workers"] if worker["pid"] is not None]

    async def served(self, shards: int) -> None:
        """Every shard has an owner whose host has started it, and the shares are even."""
        await eventually(lambda: self._is_served(shards), f"{shards} shards served, now {self.shards()}")

    def _is_served(self, shards: int) -> bool:
        workers = self.agent.status()["workers"]
        ready = [worker for worker in workers if worker["standing"] == "ready"]
        loads = [len(worker["shards"]) for worker in ready]
        if len(ready) < len(workers) or sum(loads) < shards or max(loads) - min(loads) > 1:
            return False
        runs = owners_by_journal(self.journal(), alive=self.pids())
        return all(runs.get(shard) == worker["pid"] for worker in ready for shard in worker["shards"])


def owners_by_journal(journal: list[list[str]], alive: list[int]) -> dict[int, int]:
    """Who runs what by the hosts' own account; fails where a shard starts while a living process runs it."""
    owners: dict[int, int] = {}
    for pid, event, *rest in journal:
        if event == "start":
            shard = int(rest[0])
            assert owners.get(shard) not in alive, f"shard {shard} has two owners"
            owners[shard] = int(pid)
        elif event == "release":
            del owners[int(rest[0])]
    return owners


class Ledger:
    """The ledger and the beats of a pipeline with so many shards, which workers would have prepared."""

    def __init__(self, shards: int = 1) -> None:
        self.shared = MemoryMembership()
        self.shared.store([encode(CreatedRecord(shards))])

    def logs(self, pipeline: str) -> MembershipLog:
        assert pipeline in ("fake", "p"), "what the worker's host has said"
        return self.shared.log()


def agent_for(
    directory: Path,
    settings: NodeSettings,
    *,
    factory: str = "fake_shard_host:make",
    ledger: Ledger | None = None,
    listener: socket.socket | None = None,
    timings: Timings | None = None,
    **arguments: Any,
) -> Agent:
    place = NodePlace(name="n", timings=timings or Timings())
    ledger = ledger or Ledger(arguments.get("shards", 1))
    host = HostFactory(factory, {"directory": str(directory), **arguments})
    return Agent(settings, host, place, ledger.logs, listener=listener)


@asynccontextmanager
async def node(
    directory: Path,
    *,
    workers: int = 2,
    drain_timeout_s: float = PATIENCE_S,
    restarts: RestartPolicy | None = None,
    **arguments: Any,
) -> AsyncIterator[Node]:
    settings = NodeSettings(
        workers=workers,
        drain_timeout_s=drain_timeout_s,
        gather_s=PATIENCE_S,
        restarts=restarts or RestartPolicy(),
    )
    agent = agent_for(directory, settings, **arguments)
    under_test = Node(agent, directory)

    async def run() -> None:
        under_test.outcome = await agent.run()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run())
        try:
            yield under_test
        finally:
            pids = under_test.pids()
            agent.request_stop()
            done, _ = await asyncio.wait({running}, timeout=PATIENCE_S)
            running.cancel()
    assert done, "the node did not end"
    assert not [pid for pid in pids if is_running(pid)], "a worker has outlived its agent"


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def ended(under_test: Node) -> Outcome:
    await eventually(lambda: under_test.outcome, "the node ends by itself")
    assert under_test.outcome is not None
    return under_test.outcome


# -- serving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "shards"), [(1, 3), (3, 5), (3, 1)])
async def test_shards_are_shared_evenly_and_a_stop_drains_them(tmp_path: Path, workers: int, shards: int) -> None:
    async with node(tmp_path, workers=workers, shards=shards) as under_test:
        await under_test.served(shards)
    assert under_test.outcome == Outcome(0)
    assert owners_by_journal(under_test.journal(), alive=[]) == {}, "every shard was released"


async def test_no_collection_of_a_worker_that_serves_looks_at_all_that_it_has_loaded(tmp_path: Path) -> None:
    async with node(tmp_path, workers=1, shards=1) as under_test:
        await under_test.served(1)
    assert int((tmp_path / "frozen-objects").read_text()) > 1000


async def test_a_crashed_workers_shards_move_and_it_comes_back_as_a_new_incarnation(tmp_path: Path) -> None:
    async with node(tmp_path, shards=4) as under_test:
        await under_test.served(4)
        before = under_test.worker(1)["pid"]
        under_test.fault(f"crash-{under_test.worker(1)['shards'][0]}")
        await eventually(lambda: under_test.worker(1)["incarnation"] == 2, "worker 1 is started again")
        await under_test.served(4)
        assert under_test.worker(1)["pid"] != before
        assert under_test.worker(0)["incarnation"] == 1
        assert under_test.worker(1)["restarts"] == 1
    assert under_test.outcome == Outcome(0)


async def test_the_only_workers_shards_are_served_again_after_its_crash(tmp_path: Path) -> None:
    async with node(tmp_path, workers=1, shards=2) as under_test:
        await under_test.served(2)
        under_test.fault("crash-0")
        await eventually(lambda: under_test.worker(0)["incarnation"] == 2, "the worker is started again")
        await under_test.served(2)


async def test_user_code_that_exits_the_process_is_treated_as_a_crash(tmp_path: Path) -> None:
    async with node(tmp_path, workers=1, shards=1) as under_test:
        await under_test.served(1)
        under_test.fault("exit-0")
        await eventually(lambda: under_test.worker(0)["incarnation"] == 2, "the worker is started again")


async def test_a_worker_that_does_not_release_a_shard_is_killed_and_the_shard_moves(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2, timings=Timings(release_timeout_s=0.3)) as under_test:
        await under_test.served(2)
        under_test.fault("hang-release")
        under_test.fault("crash-1")
        await eventually(lambda: under_test.worker(0)["incarnation"] == 2, "worker 0 is killed for its silence")
        (tmp_path / "hang-release").unlink()
        await under_test.served(2)


async def test_sigterm_to_a_worker_alone_drains_it_and_it_is_replaced(tmp_path: Path) -> None:
    async with node(tmp_path, shards=4) as under_test:
        await under_test.served(4)
        before = under_test.worker(0)["pid"]
        released = set(under_test.worker(0)["shards"])
        os.kill(before, signal.SIGTERM)
        await eventually(lambda: under_test.worker(0)["incarnation"] == 2, "worker 0 is replaced")
        await under_test.served(4)
    by_itself = {
        int(rest[0]) for pid, event, *rest in under_test.journal() if int(pid) == before and event == "release"
    }
    assert by_itself == released


async def test_user_files_named_like_standard_modules_do_not_break_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("socket", "logging", "http", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is the user's')")
    monkeypatch.chdir(tmp_path)
    async with node(tmp_path, workers=1, shards=1) as under_test:
        await under_test.served(1)


async def test_ctrl_c_reaches_workers_without_harm(tmp_path: Path) -> None:
    async with node(tmp_path, workers=1, shards=1) as under_test:
        await under_test.served(1)
        os.kill(under_test.worker(0)["pid"], signal.SIGINT)
        received = under_test.agent.status()["counts"]["records_in"]
        await eventually(
            lambda: under_test.agent.status()["counts"]["records_in"] > received, "the worker goes on working"
        )
        assert under_test.worker(0)["incarnation"] == 1


# -- with others ------------------------------------------------------------------------------------------------------


async def both_serve(nodes: list[Node], shards: int) -> None:
    def is_shared() -> bool:
        loads = [sum(len(shards) for shards in one.shards()) for one in nodes]
        return sum(loads) == shards and max(loads) - min(loads) <= 1

    await eventually(is_shared, f"{shards} shards are shared, now {[one.shards() for one in nodes]}")


async def test_two_nodes_share_the_shards_and_one_that_ends_leaves_them_to_the_other(tmp_path: Path) -> None:
    ledger = Ledger(4)
    async with node(tmp_path, workers=2, shards=4, ledger=ledger) as first:
        await first.served(4)
        async with node(tmp_path, workers=2, shards=4, ledger=ledger) as second:
            await both_serve([first, second], 4)
        assert second.outcome == Outcome(0)
        await first.served(4)
    assert first.outcome == Outcome(0)
    assert owners_by_journal(first.journal(), alive=[]) == {}, "every shard was released"


async def test_a_node_that_may_not_read_the_ledger_drains_and_says_why(tmp_path: Path) -> None:
    class RefusingLedger(Ledger):
        def logs(self, pipeline: str) -> MembershipLog:
            log = self.shared.log()
            log.trouble.fail("follow", RefusedError(f"{pipeline}.ledger: user 'bob' may not read it"))
            return log

    async with node(tmp_path, shards=2, ledger=RefusingLedger(2)) as under_test:
        assert await ended(under_test) == Outcome(1, "fake.ledger: user 'bob' may not read it")


# -- giving up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "outcome"),
    [
        ("settings", Outcome(2, "cannot start:\n  - --brokers nowhere: no such host")),
        ("refused", Outcome(1, "the broker refuses user 'bob'")),
        ("unavailable", Outcome(1, "no broker answers at 127.0.0.1:9")),
    ],
)
async def test_trouble_at_the_start_ends_the_node_with_its_message(
    tmp_path: Path, prepare: str, outcome: Outcome
) -> None:
    async with node(tmp_path, shards=2, prepare=prepare) as under_test:
        assert await ended(under_test) == outcome


async def test_user_code_that_cannot_be_loaded_ends_the_node_with_its_error(tmp_path: Path) -> None:
    async with node(tmp_path, factory="fake_shard_host:make_badly") as under_test:
        assert await ended(under_test) == Outcome(1, "unexpected ValueError: app.py line 3: no such table")


async def test_a_final_error_drains_the_others_and_is_reported_once(tmp_path: Path) -> None:
    async with node(tmp_path, workers=3, shards=3) as under_test:
        await under_test.served(3)
        others = [worker["pid"] for worker in under_test.agent.status()["workers"] if worker["shards"] != [1]]
        under_test.fault("stage-1")
        assert await ended(under_test) == Outcome(1, "stage 'score' failed at payments/0/17")
    stopped = [int(pid) for pid, event, *_ in under_test.journal() if event == "stop"]
    assert sorted(stopped) == sorted(others)


async def test_workers_that_die_again_and_again_end_the_node_and_the_message_says_how(tmp_path: Path) -> None:
    patience = RestartPolicy(delay_first_s=0.01, delay_max_s=0.02, crashes_max=3)
    async with node(tmp_path, workers=1, shards=1, restarts=patience) as under_test:
        under_test.fault("poison-0")
        outcome = await ended(under_test)
    assert outcome.exit_code == 1
    assert "more than 3 times" in str(outcome.message)
    assert "SIGKILL" in str(outcome.message)
    assert sum(event == "preparing" for _, event, *_ in under_test.journal()) == 4


async def test_an_unexpected_error_is_a_crash_and_its_message_stays_out_of_the_logs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with node(tmp_path, workers=1, shards=1) as under_test:
        await under_test.served(1)
        under_test.fault("defect-0")
        await eventually(lambda: under_test.worker(0)["incarnation"] == 2, "the worker is started again")
        (tmp_path / "defect-0").unlink(missing_ok=True)
    stderr = capfd.readouterr().err
    assert "unexpected KeyError" in stderr
    assert "in _meet_faults" in stderr
    assert "secret payload" not in stderr


# -- ending -----------------------------------------------------------------------------------------------------------


async def test_a_run_until_caught_up_ends_by_itself(tmp_path: Path) -> None:
    async with node(tmp_path, workers=3, shards=2, until="caught-up") as under_test:
        await under_test.served(2)
        under_test.fault("caught-up")
        assert await ended(under_test) == Outcome(0)


@pytest.mark.parametrize("fault", ["hang-stop", "block-stop"])
async def test_a_drain_that_hangs_is_ended_at_its_bound_with_a_message(tmp_path: Path, fault: str) -> None:
    async with node(tmp_path, shards=2, drain_timeout_s=1.0) as under_test:
        await under_test.served(2)
        under_test.fault(fault)
    assert under_test.outcome is not None
    assert under_test.outcome.exit_code == 1
    message = str(under_test.outcome.message)
    assert "did not drain within" in message
    assert "unexpected" not in message


async def test_a_second_signal_cuts_a_drain_short(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as under_test:
        await under_test.served(2)
        under_test.fault("block-stop")
        under_test.agent.request_stop(signal.SIGTERM)
        await eventually(lambda: ["stop"] in [entry[1:] for entry in under_test.journal()], "the drain has begun")
        under_test.agent.request_stop(signal.SIGTERM)
        outcome = await ended(under_test)
    assert outcome.exit_code == 143


async def test_a_stop_while_user_code_is_still_loading_ends_at_once(tmp_path: Path) -> None:
    async with node(tmp_path, factory="fake_shard_host:make_slowly") as under_test:
        await eventually(lambda: list(tmp_path.glob("loading-*")), "user code is being loaded")
    assert under_test.outcome == Outcome(0)


async def test_a_stop_while_workers_wait_for_the_broker_ends_at_once(tmp_path: Path) -> None:
    async with node(tmp_path, shards=1, prepare="hang") as under_test:
        await eventually(under_test.journal, "a worker waits")
    assert under_test.outcome == Outcome(0)


async def test_cancelling_an_agent_leaves_no_process_behind(tmp_path: Path) -> None:
    agent = agent_for(tmp_path, NodeSettings(workers=2), shards=2)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(agent.run())
        under_test = Node(agent, tmp_path)
        await under_test.served(2)
        pids = under_test.pids()
        running.cancel()
    assert not [pid for pid in pids if is_running(pid)]


# -- as a program -----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from memory_membership import MemoryMembership
from millstream.processor.agent import HostFactory
from millstream.processor.event_log import configure_logging
from millstream.processor.ledger import CreatedRecord, encode
from millstream.processor.node import report, run_node
from millstream.processor.node_settings import NodeSettings
from millstream.processor.participation import NodePlace
configure_logging("info")
factory = HostFactory("fake_shard_host:make", {"directory": sys.argv[1], "shards": 4})
shared = MemoryMembership()
shared.store([encode(CreatedRecord(4))])
settings, place = NodeSettings(workers=2), NodePlace(name="n")
sys.exit(report(run_node(settings, factory, place, lambda pipeline: shared.log())))
"""


@contextmanager
def running_program(directory: Path, stderr: Path) -> Iterator[subprocess.Popen[bytes]]:
    with stderr.open("wb") as errors:
        running = subprocess.Popen([sys.executable, "-c", PROGRAM, str(directory)], stderr=errors)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with running_program(tmp_path, tmp_path / "stderr") as running:
        yield running


@pytest.fixture
def program_without_room_for_logs(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    with running_program(tmp_path, Path("/dev/full")) as running:
        yield running


async def children_that_serve(program: subprocess.Popen[bytes], directory: Path, shards: int) -> list[psutil.Process]:
    journal = directory / "journal"
    await eventually(lambda: journal.exists() and journal.read_text().count(" start ") >= shards, "shards are served")
    return psutil.Process(program.pid).children()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers notice the end of the channel, when they listen")
async def test_workers_die_with_an_agent_that_is_killed(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    children = await children_that_serve(program, tmp_path, 4)
    assert len(children) == 2
    program.kill()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs Linux and a permission")
async def test_an_agent_that_may_comes_before_its_workers(tmp_path: Path) -> None:
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    # Whoever has one of its own keeps it, and so would the program.
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        with running_program(tmp_path, tmp_path / "stderr") as program:
            children = await children_that_serve(program, tmp_path, 4)
            if "precedence=ordinary" in (tmp_path / "stderr").read_text():
                pytest.skip("this machine grants no real-time priority")
            assert os.sched_getscheduler(program.pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
            assert [os.sched_getscheduler(child.pid) for child in children] == [os.SCHED_OTHER] * 2
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_program_and_it_exits_with_0(
    program: subprocess.Popen[bytes], tmp_path: Path, stop_signal: signal.Signals
) -> None:
    await children_that_serve(program, tmp_path, 4)
    program.send_signal(stop_signal)
    await eventually(lambda: program.poll() is not None, "the program ends")
    assert program.returncode == 0
    assert (tmp_path / "journal").read_text().count(" release ") == 4


async def test_a_node_whose_logs_find_no_room_works_on_and_drains(
    program_without_room_for_logs: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    program = program_without_room_for_logs
    for child in await children_that_serve(program, tmp_path, 4):
        child.kill()
    await eventually(lambda: (tmp_path / "journal").read_text().count(" start ") >= 8, "killed workers are replaced")
    program.send_signal(signal.SIGTERM)
    await eventually(lambda: program.poll() is not None, "the program ends")
    assert program.returncode == 0


async def test_a_second_signal_ends_the_program_by_the_convention(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    await children_that_serve(program, tmp_path, 4)
    (tmp_path / "block-stop").touch()
    program.send_signal(signal.SIGINT)
    await eventually(lambda: " stop" in (tmp_path / "journal").read_text(), "the drain has begun")
    program.send_signal(signal.SIGINT)
    await eventually(lambda: program.poll() is not None, "the program ends")
    assert program.returncode == 130
    assert "second signal" in (tmp_path / "stderr").read_text()


async def test_arguments_of_hosts_are_in_no_process_list(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for child in await children_that_serve(program, tmp_path, 4):
        assert str(tmp_path) not in " ".join(child.cmdline()[1:])
        assert str(tmp_path) not in {value for key, value in child.environ().items() if key not in os.environ}


def test_the_agent_loads_no_user_code_and_none_of_the_heavy_libraries() -> None:
    check = """
import sys
import millstream.connectors.kafka.membership_log
import millstream.processor.run_command
heavy = {"numpy", "numba", "confluent_kafka", "orjson"} & sys.modules.keys()
sys.exit(f"the agent loads {sorted(heavy)}" if heavy else 0)
"""
    subprocess.run([sys.executable, "-c", check], check=True, timeout=PATIENCE_S)


# -- what it tells ----------------------------------------------------------------------------------------------------


async def get(url: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    return await asyncio.to_thread(read)


def metric(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)


async def test_the_pages_tell_health_status_and_counters_that_survive_a_crash(tmp_path: Path) -> None:
    listener = bind("127.0.0.1:0")
    assert listener is not None
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with node(tmp_path, shards=4, listener=listener) as under_test:
        await under_test.served(4)
        assert await get(f"{url}/healthz") == "ok\n"
        await eventually(lambda: under_test.agent.status()["counts"]["records_in"] > 0, "records are counted")
        before = metric(await get(f"{url}/metrics"), "millstream_records_in_total")
        assert before > 0
        under_test.fault("crash-0")
        under_test.fault("crash-2")
        await eventually(lambda: under_test.worker(0)["incarnation"] > 1, "worker 0 is started again")
        text = await get(f"{url}/metrics")
        assert metric(text, "millstream_records_in_total") >= before
        assert metric(text, "millstream_worker_restarts_total") >= 1
        await under_test.served(4)
        text = await get(f"{url}/metrics")
        assert metric(text, "millstream_shards_owned") == metric(text, "millstream_shards") == 4
        assert metric(text, "millstream_workers") == 2
        status = json.loads(await get(f"{url}/status"))
        assert (status["pipeline"], status["phase"], len(status["workers"])) == ("fake", "running", 2)
        assert status["precedence"] == "ordinary", "an agent that is told of none claims none"


async def answered(url: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a page that may say no."""

    def read() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read())

    return await asyncio.to_thread(read)


@asynccontextmanager
async def pages(directory: Path, **arguments: Any) -> AsyncIterator[tuple[Node, str]]:
    listener = bind("127.0.0.1:0")
    assert listener is not None
    async with node(directory, listener=listener, **arguments) as under_test:
        yield under_test, f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_readiness_comes_with_the_first_shard_and_goes_with_the_first_signal(tmp_path: Path) -> None:
    async with pages(tmp_path, workers=1, shards=1) as (under_test, url):
        assert (await answered(f"{url}/readyz"))[0] == 503
        await under_test.served(1)
        await eventually(lambda: under_test.agent.status()["ready"], "the node is ready")
        status, body = await answered(f"{url}/readyz")
        assert (status, body["ready"], body["reason"]) == (200, True, "ready")
        under_test.fault("hang-stop")
        under_test.agent.request_stop(signal.SIGTERM)
        await eventually(lambda: under_test.agent.status()["phase"] == "draining", "the drain begins")
        status, body = await answered(f"{url}/readyz")
        assert (status, body["reason"]) == (503, "draining")
        assert await get(f"{url}/healthz") == "ok\n", "it is alive until its end"
        under_test.agent.request_stop(signal.SIGTERM)


async def test_shards_without_an_answer_from_the_broker_make_the_node_alive_but_not_ready(tmp_path: Path) -> None:
    async with pages(tmp_path, workers=1, shards=2) as (under_test, url):
        await eventually(lambda: under_test.agent.status()["ready"], "the node is ready")
        under_test.fault("silent")
        await eventually(lambda: not under_test.agent.status()["ready"], "the node notices")
        status, body = await answered(f"{url}/readyz")
        assert (status, body["reason"]) == (503, "broker-away")
        assert await get(f"{url}/healthz") == "ok\n"
        assert metric(await get(f"{url}/metrics"), "millstream_ready") == 0
        (tmp_path / "silent").unlink()
        await eventually(lambda: under_test.agent.status()["ready"], "the node recovers")


async def test_scrapes_while_a_worker_dies_lose_its_gauges_and_no_count(tmp_path: Path) -> None:
    patience = RestartPolicy(delay_first_s=2.0)
    counters = ("millstream_records_in_total", "millstream_worker_cpu_seconds_total", "millstream_batches_total")
    async with pages(tmp_path, workers=2, shards=2, restarts=patience) as (under_test, url):
        await under_test.served(2)
        await eventually(
            lambda: all(shard["lag"] == 7 for shard in under_test.agent.status()["shards"]), "every shard has reported"
        )
        text = await get(f"{url}/metrics")
        assert 'millstream_worker_resident_bytes{worker="1"}' in text
        assert text.count("millstream_lag_records{shard=") + text.count("millstream_lag_records{topic=") == 2
        before = {name: metric(text, name) for name in counters}
        assert before["millstream_worker_cpu_seconds_total"] > 0
        under_test.fault(f"crash-{under_test.worker(1)['shards'][0]}")
        while under_test.worker(1)["standing"] != "waiting":
            after = {name: metric(await get(f"{url}/metrics"), name) for name in counters}
            assert all(after[name] >= before[name] for name in counters)
            before = after
        text = await get(f"{url}/metrics")
        for gauge in ("resident_bytes", "loop_lag_seconds"):
            assert f'millstream_worker_{gauge}{{worker="0"}}' in text
            assert f'millstream_worker_{gauge}{{worker="1"}}' not in text
        assert 'millstream_shards_owned{worker="1"}' not in text
        assert all(metric(text, name) >= before[name] for name in counters)


async def test_the_status_names_the_owner_and_the_state_of_every_shard(tmp_path: Path) -> None:
    async with pages(tmp_path, workers=2, shards=3) as (under_test, url):
        await under_test.served(3)
        await eventually(
            lambda: all(shard["lag"] == 7 for shard in under_test.agent.status()["shards"]), "every shard has reported"
        )
        _, status = await answered(f"{url}/status")
        owners = {shard["shard"]: shard["owner"] for shard in status["shards"]}
        assert owners == {shard: w["worker"] for w in status["workers"] for shard in w["shards"]}
        assert {shard["state"] for shard in status["shards"]} == {"running"}
        assert sum(worker["lag"] for worker in status["workers"]) == 21
        assert status["ready"] is True
        assert re.fullmatch(r"\d+\.\d+.*", status["version"])


async def test_what_strangers_send_to_the_pages_is_refused_or_dropped(tmp_path: Path) -> None:
    listener = bind("127.0.0.1:0")
    assert listener is not None
    address = listener.getsockname()

    async def send(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async with node(tmp_path, workers=1, shards=1, listener=listener):
        assert b" 404 " in await send(b"GET /etc/passwd HTTP/1.1\r\n\r\n")
        assert b" 405 " in await send(b"POST /status HTTP/1.1\r\n\r\n")
        assert b" 400 " in await send(b"\r\n\r\n")
        assert await send(b"GET /" + b"x" * 100_000) == b""
        assert (await send(b"GET /healthz?x=1 HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nok\n")


def test_an_address_that_is_taken_or_senseless_is_refused_before_anything_starts() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SettingsError, match=r"cannot listen.*--http off"),
    ):
        bind(f"127.0.0.1:{taken.getsockname()[1]}")
    for senseless in ("9100", "localhost", "localhost:", "localhost:http", "localhost:70000", ""):
        with pytest.raises(SettingsError, match="must be host:port"):
            bind(senseless)
    assert bind("off") is None
