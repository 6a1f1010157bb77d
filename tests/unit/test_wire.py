"""Kafka's primitive types: what is written reads back as aiokafka reads it, and nothing is read past the end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import aiokafka.protocol.types as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connectors.kafka.wire import ProtocolError, Reader, Writer, unsigned_varint

quick = settings(max_examples=60, deadline=None)

INTEGERS = [
    (8, "int8", oracle.Int8),
    (16, "int16", oracle.Int16),
    (32, "int32", oracle.Int32),
    (64, "int64", oracle.Int64),
]


def written(write: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    write(writer)
    return writer.finish()


@pytest.mark.parametrize(("bits", "name", "kind"), INTEGERS)
@quick
@given(st.data())
def test_integers(bits: int, name: str, kind: Any, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    encoded = written(lambda writer: getattr(writer, name)(value))
    assert encoded == kind.encode(value)
    assert getattr(Reader(encoded), name)() == value


@quick
@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints(value: int) -> None:
    encoded = unsigned_varint(value)
    assert encoded == oracle.UnsignedVarInt32.encode(value)
    assert Reader(encoded).unsigned_varint() == value


@quick
@given(st.none() | st.text(max_size=300))
def test_strings(value: str | None) -> None:
    encoded = written(lambda writer: writer.string(value))
    assert encoded == oracle.CompactString().encode(value)
    assert Reader(encoded).nullable_string() == value
    if value is None:
        with pytest.raises(ProtocolError, match="null string"):
            Reader(encoded).string()
    else:
        assert Reader(encoded).string() == value


@quick
@given(st.lists(st.binary(max_size=100), max_size=4))
def test_blobs_of_several_chunks_are_one(chunks: list[bytes]) -> None:
    encoded = written(lambda writer: writer.blob(iter(chunks)))
    assert encoded == oracle.CompactBytes.encode(b"".join(chunks))
    assert bytes(Reader(encoded).nullable_blob() or b"") == b"".join(chunks)


def test_a_null_blob_and_an_empty_one_are_told_apart() -> None:
    assert Reader(b"\x00").nullable_blob() is None
    assert Reader(b"\x01").nullable_blob() == b""


@quick
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200))
def test_arrays(values: list[int]) -> None:
    encoded = written(lambda writer: writer.array(values, Writer.int32))
    assert encoded == oracle.CompactArray(oracle.Int32).encode(values)
    assert Reader(encoded).array(Reader.int32) == values


def test_a_null_array_reads_as_empty() -> None:
    encoded = written(lambda writer: writer.array_size(None))
    assert encoded == oracle.CompactArray(oracle.Int32).encode(None)
    assert Reader(encoded).array(Reader.int32) == []


@quick
@given(st.uuids(), st.booleans(), st.text(max_size=50).filter(lambda text: len(text.encode()) < 2**15))
def test_uuids_booleans_and_plain_strings(identity: uuid.UUID, flag: bool, text: str) -> None:
    def write(writer: Writer) -> None:
        writer.uuid(identity)
        writer.boolean(flag)
        writer.plain_string(text)

    encoded = written(write)
    assert encoded[17:] == oracle.String().encode(text)
    reader = Reader(encoded)
    assert (reader.uuid(), reader.boolean()) == (identity, flag)


TAGS = b"\x03" + b"\x00\x01a" + b"\x02\x00" + b"\x90\x4e\x02bc" + b"rest"


def test_tagged_fields_are_read_by_number_or_passed_over() -> None:
    reader = Reader(TAGS)
    assert {tag: bytes(value) for tag, value in reader.tags().items()} == {0: b"a", 2: b"", 10000: b"bc"}
    passed = Reader(TAGS)
    passed.skip_tags()
    for at in (reader, passed):
        assert at.int32() == int.from_bytes(b"rest", "big")


READS: list[Callable[[Reader], object]] = [
    Reader.boolean,
    Reader.int8,
    Reader.int16,
    Reader.int32,
    Reader.int64,
    Reader.unsigned_varint,
    Reader.string,
    Reader.nullable_string,
    Reader.nullable_blob,
    Reader.uuid,
    Reader.skip_tags,
    Reader.tags,
    lambda reader: reader.array(Reader.int32),
    lambda reader: reader.array(lambda inner: inner.array(Reader.string)),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(READS), max_size=12), st.binary(max_size=60))
def test_whatever_the_bytes_a_read_answers_or_is_a_protocol_error(reads: list[Any], data: bytes) -> None:
    reader = Reader(data)
    try:
        for read in reads:
            read(reader)
    except ProtocolError:
        pass


@pytest.mark.parametrize("read", READS[1:])
def test_nothing_is_read_past_the_end(read: Callable[[Reader], object]) -> None:
    with pytest.raises(ProtocolError):
        read(Reader(b""))


@pytest.mark.parametrize("count", [2, 2**20, 2**31, 2**32 - 1])
def test_a_count_beyond_the_rest_of_the_answer_is_a_lie_and_costs_nothing(count: int) -> None:
    hostile = unsigned_varint(count + 1) + b"\x00"
    with pytest.raises(ProtocolError, match=rf"an array of {count}"):
        Reader(hostile).array(Reader.int8)
    with pytest.raises(ProtocolError):
        Reader(unsigned_varint(count) + b"\x00").skip_tags()
    with pytest.raises(ProtocolError):
        Reader(hostile).nullable_blob()


@pytest.mark.parametrize("count", [0, 2, 3])
def test_the_only_element_must_be_the_only_one(count: int) -> None:
    assert Reader(b"\x02\x07").only(Reader.int8) == 7
    with pytest.raises(ProtocolError, match=f"{count} answers"):
        Reader(unsigned_varint(count + 1) + bytes(count)).only(Reader.int8)


def test_a_varint_without_an_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="more than five bytes"):
        Reader(b"\xff" * 20).unsigned_varint()


def test_text_that_is_not_utf8_is_read_with_marks_in_it() -> None:
    assert Reader(b"\x03\xffa").string() == "\ufffda"
