"""A stage's definition as words that can be sent, and back again in the device's process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from millstream.gpu_offload.protocol import ColumnOrder, FunctionReference, StageOrder
from millstream.gpu_offload.references import extend_path, load, reference_to
from millstream.processor.offloading import ColumnSchema, Equality, Offloadable, StageDefinition


def order_for(stage: StageDefinition) -> StageOrder:
    """The definition in words. Raises NotByNameError where one of its functions cannot be loaded by name."""
    functions = stage.offloadable
    return StageOrder(
        name=stage.name,
        cpu=_reference(functions.cpu, "cpu"),
        array=_reference(functions.array, "array"),
        gpu=_reference(functions.gpu, "gpu"),
        resident=_reference(functions.resident, "resident"),
        version=functions.version,
        relative=functions.equality.relative,
        absolute=functions.equality.absolute,
        reads=_column_orders(stage.reads),
        adds=_column_orders(stage.adds),
        memory_mb=stage.memory_mb,
        path=tuple(sys.path),
    )


def definition_from(order: StageOrder) -> StageDefinition:
    """The stage again, with its functions loaded. Raises NotByNameError, and whatever the user's modules raise."""
    extend_path(order.path)
    return StageDefinition(
        name=order.name,
        offloadable=Offloadable(
            cpu=_function(order.cpu),
            array=_function(order.array),
            gpu=_function(order.gpu),
            resident=_function(order.resident),
            version=order.version,
            equality=Equality(order.relative, order.absolute),
        ),
        reads=_schemas(order.reads),
        adds=_schemas(order.adds),
        latency_budget_ms=0.0,
        memory_mb=order.memory_mb,
    )


def _reference(function: object, form: str) -> FunctionReference | None:
    return None if function is None else reference_to(function, form)


def _function(reference: FunctionReference | None) -> Any:
    return None if reference is None else load(reference)


def _column_orders(columns: Iterable[ColumnSchema]) -> tuple[ColumnOrder, ...]:
    return tuple(
        ColumnOrder(column.name, column.dtype.str, tuple(column.shape), column.is_text, column.is_optional)
        for column in columns
    )


def _schemas(orders: Iterable[ColumnOrder]) -> tuple[ColumnSchema, ...]:
    return tuple(
        ColumnSchema(order.name, np.dtype(order.dtype), order.shape, order.is_text, order.is_optional)
        for order in orders
    )
