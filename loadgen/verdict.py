"""What the judge says in the end: as a sentence, as a table, and as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from millstream.loadgen.accounting import Balance
from millstream.loadgen.latency import Percentiles
from millstream.loadgen.timeline import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement on one run of one pipeline.

    `latency` runs from each event's intended send time to its arrival at a reader of committed records, and is there
    only for events that arrived while the judge watched; `timeline` has it second by second. `output_pause_ms` is the
    longest time between two arrivals of output, and `partition_pause_ms` the longest between two in one output
    partition; both None where the judge did not watch. `offenders` names the first few of each kind. `remarks` says
    what else a reader must know. `uncommitted_records` are records, or markers, behind the last stable offset: a
    transaction was left open.
    """

    balance: Balance
    effects_each: int
    events_per_s: float | None
    latency: Percentiles | None
    timeline: tuple[Moment, ...]
    output_pause_ms: float | None
    partition_pause_ms: float | None
    uncommitted_records: int
    offsets_behind: int | None
    offenders: Mapping[str, tuple[str, ...]]
    remarks: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every input has exactly its effects, in order, and all of that is committed."""
        return self.balance.is_clean and not self.uncommitted_records and not self.offsets_behind

    def as_json(self) -> dict[str, object]:
        """One flat object, apart from `offenders`, `remarks` and `timeline`."""
        balance = self.balance
        fields: dict[str, object] = {
            "clean": self.is_clean,
            "events": balance.inputs,
            "outputs": balance.outputs,
            "lost": balance.lost,
            "doubled": balance.doubled,
            "reordered": balance.reordered,
            "scattered": balance.scattered,
            "unexpected": balance.unexpected,
            "altered": balance.altered,
            "inputs_repeated": balance.inputs_repeated,
            "inputs_foreign": balance.inputs_foreign,
            "uncommitted_records": self.uncommitted_records,
        }
        if self.offsets_behind is not None:
            fields["offsets_behind"] = self.offsets_behind
        if self.events_per_s is not None:
            fields["events_per_s"] = round(self.events_per_s, 1)
        if self.latency is not None:
            fields.update(self.latency.as_fields("latency_ms"))
        if self.output_pause_ms is not None and self.partition_pause_ms is not None:
            fields["output_pause_ms"] = round(self.output_pause_ms, 1)
            fields["partition_pause_ms"] = round(self.partition_pause_ms, 1)
        fields["offenders"] = {kind: list(named) for kind, named in self.offenders.items()}
        fields["remarks"] = list(self.remarks)
        fields["timeline"] = [moment.as_json() for moment in self.timeline]
        return fields

    def as_table(self, title: str) -> Table:
        """The same for people."""
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="cyan")
        table.add_column(justify="right")
        balance = self.balance
        table.add_row("events", f"{balance.inputs:,}")
        table.add_row("outputs", f"{balance.outputs:,}")
        for name in ("lost", "doubled", "reordered", "scattered", "unexpected", "altered"):
            _add_offence(table, name, getattr(balance, name))
        for name, number in (
            ("events twice in the input", balance.inputs_repeated),
            ("input records that are no events", balance.inputs_foreign),
            ("uncommitted records", self.uncommitted_records),
            ("committed offsets behind by", self.offsets_behind or 0),
        ):
            if number:
                _add_offence(table, name, number)
        if self.events_per_s is not None:
            table.add_row("events per second", f"{self.events_per_s:,.0f}")
        if self.latency is not None:
            latency = self.latency
            table.add_row("latency p50 / p90", f"{latency.p50:,.1f} / {latency.p90:,.1f} ms")
            table.add_row("latency p99 / p99.9", f"{latency.p99:,.1f} / {latency.p999:,.1f} ms")
            table.add_row("latency p99.99 / max", f"{latency.p9999:,.1f} / {latency.max:,.1f} ms")
        if self.output_pause_ms is not None and self.partition_pause_ms is not None:
            table.add_row("longest pause of all output", f"{self.output_pause_ms:,.0f} ms")
            table.add_row("longest pause of a partition", f"{self.partition_pause_ms:,.0f} ms")
        return table

    def sentences(self) -> list[str]:
        """The verdict in words, then offenders and remarks."""
        return [
            "Each event had its effect exactly once, in order."
            if self.is_clean
            else "The output is NOT what exactly-once processing of the input would leave.",
            *(f"{kind}: {', '.join(named)}" for kind, named in self.offenders.items()),
            *self.remarks,
        ]


def _add_offence(table: Table, name: str, number: int) -> None:
    table.add_row(name, f"[bold red]{number:,}[/]" if number else "[green]0[/]")
