"""Which stages may use which of a node's devices."""

from __future__ import annotations

from dataclasses import replace

from millstream.gpu_offload.lease import DevicePool, Wish

SCORE = Wish("worker-0", "score", memory_mb=600)
TREE = Wish("worker-0", "tree", memory_mb=600)


def test_leases_go_to_the_device_with_the_fewest() -> None:
    pool = DevicePool({"gpu0": 1000, "gpu1": 1000})
    first, second = pool.lease(SCORE), pool.lease(TREE)
    assert first is not None
    assert second is not None
    assert {first.device, second.device} == {"gpu0", "gpu1"}


def test_memory_is_counted_once_for_a_stage_and_given_back() -> None:
    pool = DevicePool({"gpu0": 1000})
    lease = pool.lease(SCORE)
    assert lease is not None
    assert pool.lease(replace(SCORE, holder="worker-1")) is not None
    assert pool.lease(TREE) is None
    pool.holder_gone("worker-1")
    pool.give_back(lease)
    assert pool.lease(TREE) is not None


def test_an_exclusive_lease_shares_with_nobody_but_the_same_stage() -> None:
    pool = DevicePool({"gpu0": None})
    alone = replace(SCORE, exclusive=True)
    lease = pool.lease(alone)
    assert lease is not None
    assert pool.lease(TREE) is None
    assert pool.lease(replace(alone, holder="worker-1")) is not None
    pool.holder_gone("worker-0")
    pool.holder_gone("worker-1")
    assert pool.lease(TREE) is not None
    assert pool.lease(alone) is None


def test_asking_again_answers_the_same_lease() -> None:
    pool = DevicePool({"gpu0": 1000})
    assert pool.lease(SCORE) is pool.lease(SCORE)
    assert len(pool.leases("gpu0")) == 1


def test_a_withdrawn_device_takes_its_leases_and_no_others_with_it() -> None:
    pool = DevicePool({"gpu0": None, "gpu1": None})
    score, tree = pool.lease(SCORE), pool.lease(TREE)
    assert score is not None
    assert tree is not None
    assert pool.withdraw(score.device) == (score,)
    assert pool.leases(tree.device) == (tree,)
    pool.give_back(score)
    again = pool.lease(SCORE)
    assert again is not None
    assert again.device == tree.device
    pool.withdraw(tree.device)
    assert pool.lease(SCORE) is None
    pool.add("gpu0", None)
    assert pool.lease(SCORE) is not None
