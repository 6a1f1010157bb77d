"""The planner beside an oracle: what it has to reach, and that planners with a fault do not reach it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from millstream.gpu_offload.decision import Option
from millstream.gpu_offload.planner import Planner
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.rivals import Chooser, Fixed
from millstream.gpu_offload.trial import Site
from millstream.loadgen import regret
from millstream.loadgen.regret_cases import Case, cases
from millstream.loadgen.regret_report import as_json, markdown, picture, planner_table
from millstream.loadgen.regret_run import CaseResult, Score, misses, run_case

SEED = 7
FAULTLESS = [
    ("steady 60K, no noise", "share"),
    ("bursts 4x", "leased"),
    ("GPU dead", "share"),
]


def case(name: str, site: str, *, short: bool = False) -> Case:
    (found,) = (one for one in cases(SEED, short=short) if (one.name, one.site.name) == (name, site))
    return found


@pytest.mark.parametrize(("name", "site"), FAULTLESS)
def test_the_planner_reaches_what_it_has_to(name: str, site: str) -> None:
    result = run_case(case(name, site), SEED, with_rivals=False)
    assert misses(result) == [], result


class Deaf(Planner):
    """Hears of arrivals two seconds late."""

    def __init__(self, site: Site) -> None:
        super().__init__("deaf", site.budget_s, site.devices, seed=SEED)
        self._unheard: list[tuple[float, int, int]] = []

    def arrived(self, now: float, records: int, byte_count: int = 0) -> None:
        self._unheard.append((now, records, byte_count))
        while self._unheard and self._unheard[0][0] <= now - 2.0:
            _, records, byte_count = self._unheard.pop(0)
            super().arrived(now, records, byte_count)

    def backlog(self, now: float, records: int) -> None:
        pass


class Fickle(Fixed):
    """Changes the device each second."""

    def __init__(self) -> None:
        super().__init__(Option("cpu", 64, 0.005))
        self._second = 0

    def wants(self, device: str) -> bool:
        return device in ("cpu", "gpu")

    def is_due(self, now: float) -> bool:
        return int(now) != self._second

    def decide(self, now: float) -> object:
        self._second = int(now)
        self._option = replace(self._option, device="gpu" if self._option.device == "cpu" else "cpu")
        return None


def with_settings(site: Site, **settings: float) -> Planner:
    return Planner("faulty", site.budget_s, site.devices, replace(PlannerSettings(), **settings), seed=SEED)


def with_prices(site: Site, factor: float) -> Planner:
    cpu, gpu = site.devices
    return Planner("faulty", site.budget_s, (replace(cpu, price_per_hour=cpu.price_per_hour * factor), gpu), seed=SEED)


Maker = Callable[[Site], Chooser]
FAULTS: dict[str, tuple[str, str, Maker, str]] = {
    "hears of the load too late": ("step up", "leased", Deaf, "late"),
    "stays where it is": ("step up", "leased", lambda _: Fixed(Option("cpu", 64, 0.005)), "late"),
    "takes the CPU to be dear": ("steady 15K, no noise", "share", lambda site: with_prices(site, 50.0), "device"),
    "takes any batch that is within the budget": (
        "steady 15K",
        "share",
        lambda site: with_settings(site, near_cheapest=3.0),
        "cost",
    ),
    "waits long before it saves": ("step down", "leased", lambda site: with_settings(site, switch_gain_s=8.0), "cost"),
    "changes its mind each second": ("steady 60K", "share", lambda _: Fickle(), "switches"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planner_with_a_fault_misses_it(fault: str) -> None:
    name, site, make, missed = FAULTS[fault]
    result = run_case(case(name, site, short=True), SEED, lambda place, _: make(place), with_rivals=False)
    assert any(missed in one for one in misses(result)), (misses(result), result.planner)


def test_rivals_are_dearer_or_late_where_the_load_changes() -> None:
    result = run_case(case("bursts 4x", "leased", short=True), SEED)
    scores = {score.name: score for score in result.scores}
    assert scores["always CPU"].late_share > 0.3
    assert scores["always GPU"].regret > 0.2
    assert set(scores) == {
        "oracle", "planner", "always CPU", "always GPU", "fixed delay", "AIMD, CPU", "AIMD, GPU", "SABER",
    }  # fmt: skip


def test_the_same_seed_gives_the_same_decisions() -> None:
    made = case("bursts 4x", "share", short=True)
    one, same = (run_case(made, SEED, with_rivals=False).planner for _ in range(2))
    assert one == same


def made_up(**own: float) -> CaseResult:
    best = Score("oracle", 1.0, 0.0, 0.0, 0, 5.0, 2, 0.0, 0.0, 0.5, 2.0)
    return CaseResult("made up", "leased", False, False, False, "", 2, [best, replace(best, name="planner", **own)])


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, []),
        ({"regret": 0.06}, ["cost 1.060x the oracle's, not 1.05x"]),
        ({"late_share": 0.02}, ["2.00% late, not 1 %"]),
        ({"bad_seconds": 3}, ["3 seconds with over 1 % late that no change explains"]),
        ({"switches": 5}, ["5 switches for 2 crossings"]),
        ({"probe_share": 0.02}, ["2.00% of the time for probes, not 1 %"]),
        ({"drained_s": 9.0}, ["the lag lasted 9.0 s, the oracle's 2.0 s"]),
    ],
)
def test_what_was_missed_is_said(own: dict[str, float], expected: list[str]) -> None:
    assert misses(made_up(**own)) == expected


def test_tables_picture_and_json_can_be_read() -> None:
    results = [made_up(regret=0.06)]
    assert planner_table(results).row_count == 1
    assert "| made up | leased | 1.060x |" in markdown(results)
    ET.fromstring(picture(results, "a title with <signs> & more"))
    assert json.loads(json.dumps(as_json(results[0])))["missed"] == ["cost 1.060x the oracle's, not 1.05x"]


def test_the_command_writes_its_files_and_says_what_it_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [
        "--json",
        str(tmp_path / "r.json"),
        "--picture",
        str(tmp_path / "r.svg"),
        "--markdown",
        str(tmp_path / "r.md"),
    ]
    assert regret.main(["--short", "--trace", "steady 60K, no noise", "--alone", *places]) in (0, 1)
    written = json.loads((tmp_path / "r.json").read_bytes())
    assert [one["trace"] for one in written["cases"]] == ["steady 60K, no noise"]
    assert "no device was asked" in written["conditions"]["time"]
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    capsys.readouterr()
    assert regret.main(["--trace", "no such", *places]) == 2
    assert "no trace has 'no such' in its name" in capsys.readouterr().err
