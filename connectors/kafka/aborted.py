"""Which batches of a fetch response belong to aborted transactions.

The broker names the aborted transactions that a response touches, each by producer id and first offset. A producer's
transactional batches are dropped from that offset on, until the control batch that aborts the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.connectors.kafka.batch_kernels import ATTRIBUTES, LAST_OFFSET, PRODUCER_ID, TRANSACTIONAL, Int64Matrix
from millstream.processor.columns import Bools


def aborted_batches(headers: Int64Matrix, abort_markers: Bools, aborted: Sequence[tuple[int, int]]) -> Bools:
    """True for each batch whose records were aborted.

    `headers` are those of the whole response, in order; `abort_markers` says which of them are control batches
    that abort; `aborted` holds (producer id, first offset) pairs, in any order.
    """
    dropped = np.zeros(len(headers), np.bool_)
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    producers: set[int] = set()
    rows = np.flatnonzero(headers[:, PRODUCER_ID] >= 0)
    columns = headers[rows][:, [LAST_OFFSET, PRODUCER_ID, ATTRIBUTES]].tolist()
    for row, (last_offset, producer_id, attributes) in zip(rows.tolist(), columns, strict=True):
        while waiting and waiting[-1][1] <= last_offset:
            producers.add(waiting.pop()[0])
        if producer_id not in producers:
            continue
        if abort_markers[row]:
            producers.remove(producer_id)
        elif attributes & TRANSACTIONAL:
            dropped[row] = True
    return dropped
