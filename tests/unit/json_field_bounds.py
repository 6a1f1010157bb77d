"""Reads and writes damaged documents, each at the end of a buffer of its own; prints how many.

`test_json_fields_bounds.py` runs this with numba's bounds checks on, which have to be set before numba is imported.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from json_field_cases import BOOL, FLOAT64, OPTIONAL_FIELDS, SAMPLES, STRING, damaged

from millstream.processor.codecs.json_fields import Field, FieldReader, FieldWriter
from millstream.processor.columns import Slices
from millstream.processor.kernels import borrowing_kernel


@borrowing_kernel
def byte_at(array: npt.NDArray[np.uint8], position: int) -> int:
    return int(array[np.uint64(position)])


def bounds_are_checked(position: int) -> bool:
    try:
        byte_at(np.zeros(3, np.uint8), position)
    except IndexError:
        return True
    return False


def main() -> None:
    if not (bounds_are_checked(3) and bounds_are_checked(-1)):
        raise SystemExit("run this with NUMBA_BOUNDSCHECK=1 and an empty NUMBA_CACHE_DIR")
    reader = FieldReader([*OPTIONAL_FIELDS, Field("x", STRING, required=False)])
    writer = FieldWriter([Field("amount", FLOAT64), Field("x", STRING), Field("q", STRING), Field("paid", BOOL)])
    rows = 0
    for sample in SAMPLES:
        for document in [sample, *(sample[:size] for size in range(len(sample))), *list(damaged(sample))[::5]]:
            alone, text = Slices.from_list([document]), Slices.from_list([document[:9]])
            columns = {"amount": np.array([0.1]), "x": text, "q": text, "paid": np.array([True])}
            read = reader.read(alone)
            writer.write(alone, columns, scanned=read if rows % 2 else None)
            rows += 1
    print(rows)


if __name__ == "__main__":
    main()
