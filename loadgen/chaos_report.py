"""What came of all cases: as JSON, and as a page with a table for each fault and a picture of the first takeover."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.loadgen.chaos_case import CaseResult
from millstream.loadgen.chaos_picture import takeover_picture
from millstream.loadgen.chaos_stage import Round
from millstream.loadgen.chaos_timing import Quantiles
from millstream.loadgen.report_file import write_json
from millstream.processor.errors import UnavailableError

_OFFENCES = ("lost", "doubled", "reordered", "unexpected", "altered")
_S_PER_HOUR = 3600.0


def detections(rounds: Sequence[Round]) -> Quantiles | None:
    """From the fault to the verdict."""
    return Quantiles.of([one.detection_ms for one in rounds if one.detection_ms is not None])


def takeovers(rounds: Sequence[Round]) -> Quantiles | None:
    """From the fault until the last of the struck partitions had output again."""
    return Quantiles.of([max(one.takeover_ms.values()) for one in rounds if one.takeover_ms])


def pauses(rounds: Sequence[Round]) -> Quantiles | None:
    """For how long a shard stood still while it moved; each shard counts."""
    return Quantiles.of([pause for one in rounds for pause in one.pause_ms.values()])


def result_as_json(result: CaseResult) -> dict[str, object]:
    """Everything about one case."""
    case, verdict = result.case, result.verdict
    fields: dict[str, object] = {
        "row": case.row,
        "case": case.name,
        "level": result.level.value,
        "seed": result.seed,
        "nodes": case.nodes,
        "workers": case.workers,
        "clean": result.is_clean,
        "watched_s": round(result.watched_s, 1),
        "mistaken_verdicts": result.mistaken,
        "mistaken_verdicts_on": result.mistaken_on,
        "offset_looks": result.offset_looks,
    }
    for name, quantiles in (
        ("detection", detections(result.rounds)),
        ("takeover", takeovers(result.rounds)),
        ("pause", pauses(result.rounds)),
        ("beat_gaps", result.beat_gaps),
    ):
        fields[name] = None if quantiles is None else quantiles.as_json()
    fields["targets_ms"] = case.targets_ms
    fields["judge"] = None if verdict is None else {k: v for k, v in verdict.as_json().items() if k != "timeline"}
    fields["complaints"] = result.complaints
    fields["failure"] = result.failure
    fields["rounds"] = [_round_as_json(one) for one in result.rounds]
    return fields


def _round_as_json(one: Round) -> dict[str, object]:
    fields = dataclasses.asdict(one)
    for name in ("takeover_ms", "pause_ms"):
        fields[name] = {str(partition): round(value, 1) for partition, value in fields[name].items()}
    for name in ("detection_ms", "told_ms"):
        fields[name] = None if fields[name] is None else round(fields[name], 1)
    return fields


def write_report(path: Path, results: Sequence[CaseResult], conditions: Mapping[str, object]) -> list[Path]:
    """Write `path` (JSON), a page beside it (`.md`) and its pictures; answers all files.

    Raises UnavailableError where the disk takes none.
    """
    report = {"conditions": conditions, "cases": [result_as_json(result) for result in results]}
    pictures = {
        path.with_name(f"{path.stem}-{result.case.name}-{result.level.value}.svg"): (result, first)
        for result in results
        if (first := _pictured(result)) is not None
    }
    page = path.with_suffix(".md")
    try:
        write_json(path, report)
        for file, (result, first) in pictures.items():
            title = f"{result.case.name} at {result.level.value}: events that came out, for every 20 ms"
            file.write_text(takeover_picture(title, first), encoding="utf-8")
        page.write_text(page_of(results, conditions, [file.name for file in pictures]), encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"the report {path} could not be written: {error.strerror}") from error
    return [path, page, *pictures]


def _pictured(result: CaseResult) -> Round | None:
    """The round in the middle of those with a takeover: neither the best nor the worst."""
    drawn = sorted((one for one in result.rounds if one.curve and one.takeover_ms), key=_worst)
    return drawn[len(drawn) // 2] if drawn else None


def _worst(one: Round) -> float:
    return max(one.takeover_ms.values())


def page_of(results: Sequence[CaseResult], conditions: Mapping[str, object], pictures: Sequence[str]) -> str:
    """The page, as Markdown."""
    parts = ["# Faults, and what came of them", ""]
    parts += [f"- {name.replace('_', ' ')}: {value}" for name, value in conditions.items()]
    parts += [
        "",
        "All times in milliseconds. *Detection* is from the fault to the verdict, by the clock of whoever gave it;",
        "of a worker, to the ledger's record at an independent reader. *Takeover* is from the fault until every",
        "partition of the dead one had committed output again, of events that were sent after the fault, at a reader",
        "of another client library; *pause* is how long the output of a shard stood still while it moved. Percentiles",
        "are over the faults.",
        "",
        *_table(
            ("row", "fault", "level", "faults", "lost", "doubled", "other", "detection p50", "p99", "max"),
            ("takeover p50", "p99", "max", "target", "pause p50", "p99", "max"),
            ("mistaken/h", "beat gap p99", "max", "whose time", "held"),
            [_row(result) for result in results],
        ),
    ]
    wrong = [result for result in results if not result.is_clean]
    if wrong:
        parts += ["", "## What did not hold", ""]
        parts += [
            f"- **{result.case.name}** at {result.level.value}: {line}" for result in wrong for line in _wrong(result)
        ]
    notes = [line for result in results if (line := _notes(result))]
    parts += ["", "## What else was measured", "", *notes] if notes else []
    if pictures:
        parts += ["", "## Around a fault", ""]
        parts += [f"![{picture}]({picture})" for picture in pictures]
    return "\n".join(parts) + "\n"


def _table(*given: tuple[str, ...] | list[list[str]]) -> list[str]:
    *heads, rows = given
    head = [str(name) for names in heads for name in names]
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def _row(result: CaseResult) -> list[str]:
    case, judged = result.case, {} if result.verdict is None else result.verdict.as_json()
    other = sum(int(str(judged.get(name, 0))) for name in _OFFENCES[2:])
    hours = result.watched_s / _S_PER_HOUR
    return [
        case.row,
        case.name,
        result.level.value,
        str(len(result.rounds)),
        *(str(judged.get(name, "?")) for name in _OFFENCES[:2]),
        str(other),
        *_cells(detections(result.rounds)),
        *_cells(takeovers(result.rounds)),
        "" if case.targets_ms is None else " / ".join(f"{target:g}" for target in case.targets_ms),
        *_cells(pauses(result.rounds)),
        f"{result.mistaken / hours:.1f}" if hours else "",
        *(("", "") if result.beat_gaps is None else (f"{result.beat_gaps.p99:.0f}", f"{result.beat_gaps.longest:.0f}")),
        ", ".join(sorted({one.whose for one in result.rounds})),
        "yes" if result.is_clean else "**no**",
    ]


def _cells(quantiles: Quantiles | None) -> tuple[str, str, str]:
    if quantiles is None:
        return ("", "", "")
    return (f"{quantiles.p50:.0f}", f"{quantiles.p99:.0f}", f"{quantiles.longest:.0f}")


def _wrong(result: CaseResult) -> list[str]:
    lines = [*result.complaints]
    if result.failure is not None:
        lines.append(result.failure.splitlines()[0])
    if result.verdict is not None and not result.verdict.is_clean:
        lines += result.verdict.sentences()
    return lines


def _notes(result: CaseResult) -> str | None:
    """The median of each number that a case has noted."""
    numbers: dict[str, list[float]] = {}
    for one in result.rounds:
        for name, value in one.notes.items():
            if isinstance(value, float | int):
                numbers.setdefault(name, []).append(value)
    if not numbers:
        return None
    middles = {name: sorted(values)[len(values) // 2] for name, values in numbers.items()}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:,.1f}" for name, value in middles.items())
    return f"- {result.case.name} at {result.level.value} (medians): {shown}"
