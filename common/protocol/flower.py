"""Packets ↔ Flower's records. The only number in common/ that knows Flower, and all that it knows.

A packet's header travels in a ConfigRecord, and so does small bulk: each record and array costs
several requests on its way. Larger bulk travels in an ArrayRecord, which Flower sends in chunks.
The arrays are plain bytes: nothing that numpy would have to open.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ridgeway.common.base.errors import Refused
from ridgeway.common.protocol.messages import MAX_BLOBS
from ridgeway.common.protocol.packet import MAX_BLOB_BYTES, MAX_HEADER_BYTES, Packet

MESSAGE_TYPE = "query.ridgeway"
HEADER = "ridgeway"
BULK = "bulk"
SMALL_BULK_BYTES = 1 << 21


def to_record(packet: Packet) -> RecordDict:
    config = ConfigRecord({"header": packet.header, "signature": packet.signature})
    if sum(memoryview(blob).nbytes for blob in packet.blobs) <= SMALL_BULK_BYTES:
        config["blobs"] = [bytes(blob) for blob in packet.blobs]
        return RecordDict({HEADER: config})
    arrays = {
        f"{number:02}": Array(
            dtype="uint8",
            shape=(memoryview(blob).nbytes,),
            stype="ridgeway.bytes",
            data=bytes(blob),
        )
        for number, blob in enumerate(packet.blobs)
    }
    return RecordDict({HEADER: config, BULK: ArrayRecord(arrays)})


def from_record(record: RecordDict) -> Packet:
    """The packet that a record holds; a record of any other form is refused."""
    try:
        config = record[HEADER]
        if not set(record) <= {HEADER, BULK} or not isinstance(config, ConfigRecord):
            raise TypeError
        header = config["header"]
        signature = config["signature"]
        if (
            not isinstance(header, bytes)
            or not isinstance(signature, str)
            or len(signature) > 256
        ):
            raise TypeError
        blobs = _large(record[BULK]) if BULK in record else _small(config["blobs"])
        too_large = len(header) > MAX_HEADER_BYTES or any(
            len(blob) > MAX_BLOB_BYTES for blob in blobs
        )
        if too_large or len(blobs) > MAX_BLOBS:
            raise TypeError
    except (KeyError, TypeError):
        raise Refused(
            "malformed", "what arrived is not a message of Ridgeway"
        ) from None
    return Packet(header, signature, blobs)


def _small(blobs: object) -> tuple[bytes, ...]:
    if not isinstance(blobs, list) or not all(
        isinstance(blob, bytes) for blob in blobs
    ):
        raise TypeError
    return tuple(blobs)


def _large(arrays: object) -> tuple[bytes, ...]:
    if not isinstance(arrays, ArrayRecord):
        raise TypeError
    return tuple(arrays[f"{number:02}"].data for number in range(len(arrays)))
