"""`millstream verify`: judge from outside whether each event had its effect exactly once, in order."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import orjson
from rich.console import Console

from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from
from millstream.loadgen.picture import check_picture, write_picture
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import JudgeProgress, VerifySettings, judge
from millstream.processor.errors import SettingsError, UnavailableError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_kafka_arguments(parser)
    parser.add_argument("--input", action="append", required=True, metavar="TOPIC", help="may be given several times")
    parser.add_argument("--output", action="append", required=True, metavar="TOPIC", help="may be given several times")
    parser.add_argument(
        "--group", metavar="NAME", help="also check that this group (the pipeline's name) committed all"
    )
    parser.add_argument("--expect-each", type=int, default=1, metavar="N", help="outputs owed for each input (1)")
    parser.add_argument(
        "--follow",
        type=int,
        metavar="EVENTS",
        help="watch a system at work until the input has this many events and all have their effect; measures latency",
    )
    parser.add_argument(
        "--patience-s", type=float, default=30.0, metavar="S", help="give up when nothing comes for so long (30)"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE.svg", help="with --follow: latency and throughput over time, as SVG"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Judge, report, and answer 0 only when nothing was lost, doubled, reordered, altered or unexpected."""
    settings = VerifySettings(
        inputs=tuple(arguments.input),
        outputs=tuple(arguments.output),
        group=arguments.group,
        effects_each=arguments.expect_each,
        follow_events=arguments.follow,
        patience_s=arguments.patience_s,
    )
    picture: Path | None = arguments.picture
    if picture is not None:
        check_picture(picture)
        if settings.follow_events is None:
            raise SettingsError("the picture", ["--picture needs --follow: nothing else has latencies over time"])
    confluent_arguments = kafka_settings_from(arguments, os.environ).confluent_arguments()
    with Console(stderr=True).status("reading") as status:

        def show(at: JudgeProgress) -> None:
            of_wanted = f" of {at.wanted:,}" if at.wanted else ""
            status.update(f"{at.phase}: {at.outputs:,}{of_wanted} outputs seen")

        verdict = judge(confluent_arguments, settings, on_progress=show)
    title = f"{', '.join(settings.inputs)} → {', '.join(settings.outputs)}"
    print_verdict(verdict, title, as_json=arguments.json)
    if picture is not None and not _draw(picture, title, verdict):
        return 1
    return 0 if verdict.is_clean else 1


def _draw(picture: Path, title: str, verdict: Verdict) -> bool:
    """Whether the picture could be written. The verdict is out by then and must not be lost with it."""
    try:
        write_picture(picture, title, verdict.timeline, verdict.sentences())
    except UnavailableError as error:
        Console(stderr=True).print(str(error), style="bold red", markup=False)
        return False
    return True


def print_verdict(verdict: Verdict, title: str, *, as_json: bool) -> None:
    """To stdout: one JSON object, or a table and sentences."""
    if as_json:
        print(orjson.dumps(verdict.as_json()).decode())
        return
    console = Console()
    console.print(verdict.as_table(title))
    first, *others = verdict.sentences()
    console.print(first, style="bold green" if verdict.is_clean else "bold red")
    for sentence in others:
        console.print(sentence, markup=False, highlight=False)
