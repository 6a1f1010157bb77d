"""`make many-nodes`: up to a hundred nodes' agents on one broker, what they cost, and how they find a dead one.

    python -m millstream.loadgen.many_nodes --nodes 10,30,100 --seconds 30
    python -m millstream.loadgen.many_nodes --nodes 24 --kills 300 --hogs 1

The agents are real, their workers are not. Every node runs on this machine, and so does the broker unless `--brokers`
names another: two cores do the work of a hundred machines here, so the CPU that is reported for one node is the figure
to look at, and how it grows. With `--kills` above 1 each node that was killed is replaced, and only such are killed as
have been there for as long as the detector's windows are.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from millstream.connectors.kafka.broker_distribution import KAFKA_VERSION
from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from, names_brokers
from millstream.loadgen.bench import Screen
from millstream.loadgen.bench_machine import Machine, Strain
from millstream.loadgen.long_command import FAILED, run_command, telling
from millstream.loadgen.many_nodes_report import as_json, beats_table, cost_table, kills_table
from millstream.loadgen.many_nodes_run import ManyNodesResult, ManyNodesRun, ManyNodesSettings
from millstream.loadgen.report_file import check_report, write_json
from millstream.processor.errors import SettingsError

_PIPELINE = "many-nodes"


def run_many_nodes(
    settings: ManyNodesSettings,
    kafka: KafkaSettings | None,
    tell: Callable[[str], None],
    results: list[ManyNodesResult],
) -> None:
    """Run each number of nodes, and add its result as soon as it is there. `kafka` None starts a broker."""
    with ExitStack() as stack:
        broker_pid = None
        if kafka is None:
            tell("starting Kafka (the first time, it is downloaded)")
            broker = stack.enter_context(DevelopmentBroker())
            kafka, broker_pid = KafkaSettings(brokers=(broker.bootstrap,)), broker.pid
        for count in settings.nodes:
            pipeline = f"{_PIPELINE}-{count}-{uuid.uuid4().hex[:8]}"

            def tell_case(what: str, count: int = count) -> None:
                tell(f"{count} nodes: {what}")

            results.append(ManyNodesRun(settings, count, kafka, broker_pid, pipeline, tell_case).run())


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Answers 0 where every killed node was found once, nobody else was, and all agree."""
    arguments = _parser().parse_args(argv)
    return run_command("many-nodes", lambda: _execute(arguments))


def _execute(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    kafka = kafka_settings_from(arguments, os.environ) if names_brokers(arguments, os.environ) else None
    results: list[ManyNodesResult] = []
    strain = Strain.now()

    def tell() -> None:
        console = Console(width=None if sys.stdout.isatty() else 160)
        for table in (cost_table(results), beats_table(results), kills_table(results)):
            console.print(table)
        conditions = _conditions(settings, strain, is_own_broker=kafka is None)
        write_json(arguments.json, {"conditions": conditions, "runs": [as_json(result) for result in results]})

    with telling(tell), Screen(Console(stderr=True)) as screen:
        run_many_nodes(settings, kafka, screen.step, results)
    return 0 if all(result.is_clean for result in results) else FAILED


def _conditions(settings: ManyNodesSettings, strain: Strain, *, is_own_broker: bool) -> dict[str, object]:
    return {
        "machine": Machine.here().as_json(),
        "broker": f"Apache Kafka {KAFKA_VERSION}, one node, on the same cores"
        if is_own_broker
        else "an existing cluster",
        "agents": "real ones, with one pretended worker each",
        "cpu_hogs": settings.hogs,
        "beat_interval_ms": settings.timings.beat_interval_s * 1000,
        "kill_every_s": settings.kill_every_s,
        "seed": settings.seed,
        "traffic": "payload of TCP as the kernel counts it, without headers",
        "timed": "from the instant before SIGKILL to the DEAD record at an independent reader of the ledger",
        **strain.until_now(),
    }


def _settings(arguments: argparse.Namespace) -> ManyNodesSettings:
    try:
        nodes = tuple(map(int, arguments.nodes.split(",")))
    except ValueError as error:
        reason = f"--nodes is {arguments.nodes!r}; give numbers, such as 10,30,100"
        raise SettingsError("many nodes cannot be started", [reason]) from error
    check_report(arguments.json)
    return ManyNodesSettings(
        nodes=nodes,
        seconds=arguments.seconds,
        processes=arguments.processes,
        kills=arguments.kills,
        kill_every_s=arguments.kill_every_s,
        hogs=arguments.hogs,
        seed=arguments.seed,
    )


def _parser() -> argparse.ArgumentParser:
    defaults = ManyNodesSettings()
    parser = argparse.ArgumentParser(
        prog="python -m millstream.loadgen.many_nodes",
        description="Run many nodes' agents against one broker, and kill some of them.",
    )
    add_kafka_arguments(parser)
    parser.add_argument("--nodes", default=",".join(map(str, defaults.nodes)), metavar="N,...", help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of measuring costs (%(default)s)")
    parser.add_argument("--processes", type=int, default=defaults.processes, help="for most of the nodes (%(default)s)")
    parser.add_argument("--kills", type=int, default=defaults.kills, help="how many nodes to kill (%(default)s)")
    parser.add_argument("--kill-every-s", type=float, default=defaults.kill_every_s, help="(%(default)s)")
    parser.add_argument("--hogs", type=int, default=defaults.hogs, help="processes that only take CPU (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of when to kill (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("many-nodes.json"), help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
