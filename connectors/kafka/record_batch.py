"""The record-batch codec: bytes as they stand in a partition to columns, and back.

A record batch (format 2) is a header of 61 bytes and then its records, which may be packed together. Integers of the
header are big-endian; a CRC32C covers everything after itself:

    base offset int64 · length int32 · leader epoch int32 · magic int8 · CRC uint32 ·
    attributes int16 · last offset delta int32 · base timestamp int64 · largest timestamp int64 ·
    producer id int64 · producer epoch int16 · base sequence int32 · record count int32

A record counts from there, in zigzag varints:

    length · attributes int8 · timestamp delta · offset delta · key size, key · value size, value ·
    header count · for each header: key size, key, value size, value

A size of -1 is null. `batch_decode` reads, `batch_encode` writes, `batch_kernels` has what both compile,
`compression` packs and unpacks.
"""

from millstream.connectors.kafka.batch_decode import FetchedRecords, decode_batches
from millstream.connectors.kafka.batch_encode import BatchBuilder, SealedBatch, record_bytes
from millstream.connectors.kafka.compression import Compression

__all__ = ["BatchBuilder", "Compression", "FetchedRecords", "SealedBatch", "decode_batches", "record_bytes"]
