"""Flower's records and the project's use of them, imported without the warnings of what Flower
imports.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer's, of click
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp

    from ridgeway.common.deploy.flower_patches import put_together, taken_apart
    from ridgeway.common.protocol.flower import (
        BULK,
        HEADER,
        MESSAGE_TYPE,
        SMALL_BULK_BYTES,
        from_record,
        to_record,
    )
    from ridgeway.simulations import local_grid
    from ridgeway.simulations.local_grid import LocalGrid, process_grid

__all__ = [
    "BULK",
    "HEADER",
    "MESSAGE_TYPE",
    "SMALL_BULK_BYTES",
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "FlowerMessage",
    "LocalGrid",
    "MetricRecord",
    "RecordDict",
    "from_record",
    "local_grid",
    "process_grid",
    "put_together",
    "taken_apart",
    "to_record",
]
