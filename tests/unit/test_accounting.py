"""The judge's books: they balance for an honest run, and find every kind of offence in a large one.

Most of these tests exist to show that the judge can fail.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen import accounting
from millstream.loadgen.accounting import EVENT_IDS_MAX, Balance, Books, Finding, Observed
from millstream.processor.columns import Int64s

EVENTS = 100_000
KEYS = 997
PARTITIONS = 6


def _honest(events: int = EVENTS) -> Observed:
    ids = np.arange(events, dtype=np.int64)
    keys = ids % KEYS
    return Observed(
        event_id=ids,
        key=keys,
        seq=ids // KEYS,
        sent_us=1_730_000_000_000_000 + ids,
        partition=keys % PARTITIONS,
        offset=ids,
    )


def _rows(events: Observed, rows: Int64s | list[int]) -> Observed:
    index = np.asarray(rows, np.int64)
    columns = (events.event_id, events.key, events.seq, events.sent_us, events.partition, events.offset)
    return Observed(*(column[index] for column in columns))


def _judged(outputs: Observed, *, foreign: int = 0, batch: int = 1000) -> tuple[Balance, Books]:
    books = Books()
    books.enter_inputs(_honest())
    for start in range(0, len(outputs), batch):
        books.enter_outputs(_rows(outputs, np.arange(start, min(start + batch, len(outputs)))))
    books.enter_outputs(_rows(outputs, []), foreign=foreign)
    return books.balance(), books


def _offences(balance: Balance) -> dict[str, int]:
    names = ("lost", "doubled", "unexpected", "altered", "reordered", "scattered")
    return {name: count for name in names if (count := getattr(balance, name))}


@pytest.fixture
def victim() -> int:
    return int(np.random.default_rng().integers(KEYS, EVENTS - 2 * KEYS))


def test_an_honest_run_is_clean() -> None:
    balance, _ = _judged(_honest())
    assert balance.is_clean
    assert balance.inputs == balance.outputs == balance.seen == EVENTS


def test_one_loss_in_a_hundred_thousand_is_found(victim: int) -> None:
    balance, books = _judged(_rows(_honest(), np.delete(np.arange(EVENTS), victim)))
    assert _offences(balance) == {"lost": 1}
    assert not balance.is_clean
    assert books.suspects().lost == [victim]


@pytest.mark.parametrize("distance", [0, 1, 5000])
def test_one_double_in_a_hundred_thousand_is_found_once_and_is_no_reorder(victim: int, distance: int) -> None:
    rows = np.insert(np.arange(EVENTS), min(victim + 1 + distance, EVENTS), victim)
    balance, books = _judged(_rows(_honest(), rows))
    assert _offences(balance) == {"doubled": 1}
    assert not balance.is_clean
    assert [offender.event_id for offender in books.offenders[Finding.DOUBLED]] == [victim]


def test_one_reorder_in_a_hundred_thousand_is_found_and_named(victim: int) -> None:
    rows = np.arange(EVENTS)
    rows[[victim, victim + KEYS]] = rows[[victim + KEYS, victim]]
    balance, books = _judged(_rows(_honest(), rows))
    assert _offences(balance) == {"reordered": 1}
    assert not balance.is_clean
    assert [offender.event_id for offender in books.offenders[Finding.REORDERED]] == [victim]


def test_events_of_different_keys_may_pass_each_other(victim: int) -> None:
    rows = np.arange(EVENTS)
    rows[[victim, victim + 1]] = rows[[victim + 1, victim]]
    balance, _ = _judged(_rows(_honest(), rows))
    assert balance.is_clean


def test_one_foreign_event_in_a_hundred_thousand_is_found() -> None:
    honest = _honest(EVENTS + 1)
    balance, books = _judged(honest)
    assert _offences(balance) == {"unexpected": 1}
    assert not balance.is_clean
    assert books.suspects().unexpected == [EVENTS]


@pytest.mark.parametrize("event_id", [-1, EVENT_IDS_MAX, 2**63 - 1])
def test_an_absurd_id_is_foreign_and_costs_no_memory(event_id: int) -> None:
    odd = Observed(*(np.array([value], np.int64) for value in (event_id, 0, 0, 0, 0, 0)))
    books = Books()
    books.enter_inputs(_honest())
    books.enter_outputs(_honest())
    books.enter_outputs(odd)
    assert _offences(books.balance()) == {"unexpected": 1}
    books.enter_inputs(odd)
    assert books.balance().inputs_foreign == 1


def test_an_output_that_is_no_event_is_unexpected() -> None:
    balance, _ = _judged(_honest(), foreign=1)
    assert _offences(balance) == {"unexpected": 1}


@pytest.mark.parametrize("column", ["key", "seq", "sent_us"])
def test_an_event_that_comes_out_with_another_value_is_altered(victim: int, column: str) -> None:
    outputs = _honest()
    getattr(outputs, column)[victim] = KEYS + 1
    balance, books = _judged(outputs)
    assert balance.altered == 1
    assert not balance.is_clean
    assert books.suspects().altered == [victim]


def test_a_key_in_two_partitions_is_scattered(victim: int) -> None:
    outputs = _honest()
    outputs.partition[victim] = (outputs.partition[victim] + 1) % PARTITIONS
    balance, books = _judged(outputs)
    assert _offences(balance) == {"scattered": 1}
    assert [offender.event_id for offender in books.offenders[Finding.SCATTERED]] == [victim]


def test_a_loss_and_a_double_do_not_cancel_each_other() -> None:
    rows = np.arange(EVENTS)
    rows[20] = 10
    balance, _ = _judged(_rows(_honest(), rows))
    assert balance.outputs == balance.inputs
    assert _offences(balance) == {"lost": 1, "doubled": 1}


def test_an_empty_input_proves_nothing() -> None:
    assert not Books().balance().is_clean


def test_two_loads_in_one_input_are_noticed() -> None:
    books = Books()
    for _ in range(2):
        books.enter_inputs(_honest(100))
        books.enter_outputs(_honest(100))
    balance = books.balance()
    assert balance.inputs_repeated == 100
    assert not balance.is_clean


def test_a_pipeline_may_owe_several_effects_for_each_event() -> None:
    for each in (2, 3):
        books = Books(effects_each=each)
        books.enter_inputs(_honest(100))
        books.enter_outputs(_rows(_honest(100), np.repeat(np.arange(100), each)))
        assert books.balance().is_clean
        assert books.effects_owed == books.effects_seen == 100 * each
        books.enter_outputs(_rows(_honest(100), [5]))
        assert books.balance().doubled == 1
        books.enter_inputs(_rows(_honest(101), [100]))
        assert books.balance().lost == each


@given(st.lists(st.integers(0, 29), max_size=60), st.integers(1, 3), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_books_agree_with_a_plain_count(
    rows: list[int], effects_each: int, outputs_first: bool, data: st.DataObject
) -> None:
    honest, inputs = _honest(30), list(range(20))
    batch = data.draw(st.integers(1, 60))
    books = Books(effects_each)
    if not outputs_first:
        books.enter_inputs(_rows(honest, inputs))
    for start in range(0, len(rows), batch):
        books.enter_outputs(_rows(honest, rows[start : start + batch]))
    if outputs_first:
        books.enter_inputs(_rows(honest, inputs))
    times = Counter(rows)
    balance = books.balance()
    assert balance.lost == sum(max(0, effects_each - times[i]) for i in inputs)
    assert balance.doubled == sum(max(0, times[i] - effects_each) for i in inputs)
    assert balance.unexpected == sum(times[i] for i in range(20, 30))
    assert balance.altered == 0
    assert balance.is_clean == all(times[i] == (effects_each if i < 20 else 0) for i in range(30))


def _along(books: Books, inputs: Observed, outputs: Observed, *, batch: int, behind: int) -> Balance:
    """Inputs and outputs are entered in turn, the outputs some batches behind."""
    steps = max(len(inputs), len(outputs)) // batch + 1
    for step in range(steps + behind):
        for column, at, enter in (
            (inputs, step, books.enter_inputs),
            (outputs, step - behind, books.enter_outputs),
        ):
            if 0 <= at < steps:
                enter(_rows(column, np.arange(min(at * batch, len(column)), min((at + 1) * batch, len(column)))))
    return books.balance()


def _length(books: Books) -> int:
    column: npt.NDArray[np.uint8] = books._in
    return len(column)


def test_books_that_are_read_along_stay_as_long_as_what_is_under_way() -> None:
    books = Books()
    events = 1_000_000
    honest = _honest(events)
    balance = _along(books, honest, honest, batch=1000, behind=20)
    assert balance.is_clean
    assert (balance.inputs, balance.outputs, balance.seen) == (events, events, events)
    assert _length(books) == _length(Books())


def test_a_loss_keeps_the_books_open_from_there_on_and_is_named(victim: int) -> None:
    books = Books()
    honest = _honest()
    balance = _along(books, honest, _rows(honest, np.delete(np.arange(EVENTS), victim)), batch=1000, behind=1)
    assert _offences(balance) == {"lost": 1}
    assert books.suspects().lost == [victim]


def test_a_double_of_what_is_settled_is_found_and_named() -> None:
    books = Books()
    honest = _honest()
    _along(books, honest, honest, batch=1000, behind=1)
    books.enter_outputs(_rows(honest, [3, 4]))
    balance = books.balance()
    assert _offences(balance) == {"doubled": 2}
    assert [offender.event_id for offender in books.offenders[Finding.DOUBLED]] == [3, 4]
    books.enter_inputs(_rows(honest, [7]))
    assert books.balance().inputs_repeated == 1
    assert books.effects_seen == EVENTS


@given(
    faults=st.lists(st.tuples(st.sampled_from(["lose", "double", "alter"]), st.integers(0, 199)), max_size=6),
    late=st.lists(st.integers(0, 199), max_size=4),
    batch=st.integers(1, 40),
    behind=st.integers(0, 4),
    effects_each=st.integers(1, 3),
)
@settings(deadline=None, max_examples=60)
def test_books_that_settle_say_the_same_as_books_that_do_not(
    faults: list[tuple[str, int]], late: list[int], batch: int, behind: int, effects_each: int
) -> None:
    honest = _honest(200)
    rows = np.repeat(np.arange(200), effects_each).tolist()
    altered = {row for fault, row in faults if fault == "alter"}
    for fault, row in faults:
        if fault == "lose" and row in rows:
            rows.remove(row)
        elif fault == "double":
            rows.append(row)
    outputs = _rows(honest, rows + late)
    outputs.sent_us[np.isin(outputs.event_id, list(altered))] += 1
    told = []
    for first_size in (4, 1 << 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accounting, "FIRST_SIZE", first_size)
            books = Books(effects_each)
        balance = _along(books, honest, outputs, batch=batch, behind=behind)
        told.append((balance, books.suspects(), books.offenders, books.effects_seen))
    assert told[0] == told[1]
