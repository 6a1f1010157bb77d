"""A few hundred schedules, and that the simulation would notice if a safeguard were missing. `make sim` runs thousands.

The first seed is another one every time; a failure says how to see it again.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim_mutations import MUTATIONS
from sim_runner import run_seed, run_seeds, told
from sim_world import Plan

# Seconds of CPU that take minutes where the machine is busy with other things.
pytestmark = pytest.mark.timeout(600)

SEEDS = 200
MUTATION_SEEDS_MAX = 200
RUN = Path(__file__).with_name("run.py")


def all_well(first: int, count: int, plan: Plan) -> int:
    """How many verdicts there were."""
    verdicts = 0
    for outcome in run_seeds(range(first, first + count), os.cpu_count() or 1, plan):
        assert not outcome.failures, told(outcome)
        verdicts += outcome.verdicts
    return verdicts


def test_whatever_befalls_a_few_nodes_every_input_has_each_effect_once() -> None:
    assert all_well(random.randrange(10**6), SEEDS, Plan()) > 0


def test_where_nodes_only_come_and_go_in_order_nobody_is_refused_or_found_dead() -> None:
    assert all_well(random.randrange(10**6), SEEDS // 8, Plan(moves_only=True)) == 0


@pytest.mark.parametrize("nodes", [20, 100])
def test_many_nodes(nodes: int) -> None:
    outcome = run_seed(nodes, Plan(nodes=nodes))
    assert not outcome.failures, told(outcome)


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_a_missing_safeguard_is_noticed(mutation: str) -> None:
    missing = MUTATIONS[mutation]
    for seed in range(MUTATION_SEEDS_MAX):
        outcome = run_seed(seed, missing.plan, mutation=mutation)
        if any(re.search(missing.noticed_as, failure) for failure in outcome.failures):
            return
    pytest.fail(f"{MUTATION_SEEDS_MAX} schedules and nobody has noticed that the product {mutation}")


def test_a_seed_gives_the_same_schedule_in_every_process() -> None:
    command = [sys.executable, str(RUN), "--seed", "7", "--trace"]
    stories = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert len(stories[0]) > 1000
    assert stories[0] == stories[1]


def test_a_failing_seed_is_printed_and_fails_again() -> None:
    command = [sys.executable, str(RUN), "--mutation", "reads what is not committed", "--jobs", "1"]
    many = subprocess.run([*command, "--seeds", "2"], capture_output=True, text=True, check=False)
    assert many.returncode == 1
    seed = re.search(r"--seed (\d+) --trace", many.stdout)
    assert seed is not None, many.stdout
    again = subprocess.run([*command, "--seed", seed[1]], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "doubled" in again.stdout
