"""Run with NUMBA_ENABLE_CUDASIM=1: the examples' kernels under numba's simulator, against their forms for the CPU."""

from __future__ import annotations

import os

import numpy as np
from example_columns import example, json_payments, readings
from numba import cuda

assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
assert cuda.is_available(), "the simulator is not on"

# Neither a multiple of the block's size nor less than it; one row; and fewer than a block.
for rows in (1, 100, 130):
    tree = example("decision_tree")
    nodes = tree.tree(2001)
    columns = readings(rows, seed=rows)
    found = tree.TREE.gpu(nodes)(columns)["answer"]
    assert np.array_equal(found, tree.TREE.cpu(columns, nodes)["answer"]), f"decision_tree, {rows} rows"

    json = example("json_filter")
    columns = json_payments(rows, seed=rows)
    found = json.FILTER.gpu()(columns)["wanted"]
    assert np.array_equal(found, json.FILTER.cpu(columns)["wanted"]), f"json_filter, {rows} rows"

print("alike")
