"""TFRecord against the crc32c package, Protocol Buffers' own library and the tfrecord package."""

import struct
from itertools import accumulate

import numpy as np
import pytest

import headrace
from headrace.data.formats import detect
from headrace.data.formats.example import parse_example
from headrace.data.formats.tfrecord import TFRecord, _Chain
from headrace.data.formats.walking import walk_file
from headrace.data.reader import Reader
from headrace.errors import DataError, ReadError
from headrace.progress import Silent

crc32c = pytest.importorskip("crc32c").crc32c


def masked(content):
    """As TensorFlow's crc32c.h has it."""
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def head_of(size):
    length = struct.pack("<Q", size)
    return length + masked(length)


def frame(payload):
    return head_of(len(payload)) + payload + masked(payload)


def write(path, payloads):
    path.write_bytes(b"".join(map(frame, payloads)))
    return path


def payloads_of(num, seed=0, longest=200):
    generator = np.random.default_rng(seed)
    return [generator.bytes(size) for size in generator.integers(0, longest, num)]


def scan(path):
    return TFRecord().scan(path, Silent())["record"]


def read(path, format="tfrecord", **options):
    """All records in the file's order, through the loader."""
    records = headrace.open(path, format, **options)
    loader = headrace.Loader(records, 3, order=headrace.SequentialOrder())
    return [value for batch in loader for value in batch["record"]]


def test_an_example_on_paper(tmp_path):
    """CRC32C of eight zeros is 0x8C28B28A, turned by 15 bits 0x65151851, masked 0x07980329."""
    empty = bytes.fromhex("0000000000000000 29039807 d8ea82a2")
    (tmp_path / "a.tfrecord").write_bytes(empty * 2)

    assert frame(b"") == empty
    assert read(tmp_path / "a.tfrecord") == [b"", b""]


def test_scan(tmp_path):
    """Each record with its head and tail, in the order of the file."""
    payloads = [b"", b"a", *payloads_of(300), b""]
    path = write(tmp_path / "a.tfrecord", payloads)

    table = scan(path)

    sizes = [len(payload) + 16 for payload in payloads]
    assert table.lengths.tolist() == sizes
    assert table.offsets.tolist() == [0, *accumulate(sizes)][:-1]
    assert read(path) == payloads


@pytest.mark.parametrize("piece_bytes", [12, 13, 100, 1000])
def test_pieces_of_any_size(tmp_path, piece_bytes):
    """Heads across the ends of pieces, and records longer than several."""
    path = write(tmp_path / "a.tfrecord", payloads_of(200, longest=400))
    chain = _Chain(path)

    walk_file(path, chain.step, Silent(), piece_bytes)

    table = chain.table()
    assert table.offsets.tolist() == scan(path).offsets.tolist()
    assert table.lengths.tolist() == scan(path).lengths.tolist()


def test_large_records_among_small(tmp_path):
    """Data of more than 256 KiB is passed over, and small records are found again after it."""
    payloads = payloads_of(50)
    large = [np.random.default_rng(1).bytes(size) for size in (3 << 20, 5 << 20, 300_000)]
    payloads[10:10] = large
    payloads += large
    path = write(tmp_path / "a.tfrecord", payloads)

    assert read(path) == payloads


def test_no_records(tmp_path):
    """A shard may be empty; only its name tells what it is."""
    path = write(tmp_path / "b.tfrecord", [])
    write(tmp_path / "a.tfrecord", [b"x"])

    assert len(headrace.open(path, "tfrecord")) == 0
    assert len(headrace.open(str(tmp_path / "*.tfrecord"), "tfrecord")) == 1


def test_detection(tmp_path):
    """By the suffix or the first length; neither text nor any other bytes pass for one."""
    write(tmp_path / "train-00000-of-00002", payloads_of(3))
    assert detect(tmp_path / "train-00000-of-00002") == "tfrecord"
    write(tmp_path / "b.tfrecords", [b""])
    assert detect(tmp_path / "b.tfrecords") == "tfrecord"
    for content in (b"text" * 9, bytes(100), b"\x05" + bytes(99), head_of(4)[:11]):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match="format is not known"):
            detect(tmp_path / "a")


def test_beyond_four_gibibytes(tmp_path):
    """Offsets across 2^31 and 2^32, and one record longer than both."""
    path = tmp_path / "a.tfrecord"
    sizes = [2**31 - 20, 5, 2**31 - 3, 7, 2**32 + 9, 3]
    offsets = [0, *accumulate(size + 16 for size in sizes)]
    with path.open("wb") as file:
        for offset, size in zip(offsets, sizes, strict=False):
            file.seek(offset)
            file.write(head_of(size))
            if size < 10:
                file.write(bytes([size]) * size + masked(bytes([size]) * size))
        file.truncate(offsets[-1])

    table = scan(path)

    assert (table.offsets.tolist(), table.lengths.tolist()) == (
        offsets[:-1],
        [size + 16 for size in sizes],
    )
    records = headrace.open(path)
    small = np.array([1, 3, 5])
    with Reader(records.paths) as reader:
        pieces = reader.finish(reader.start(records.spans(small, "record"), small))
        came = [TFRecord().decode("record", pieces.record(row), {}) for row in range(3)]
    assert came == [bytes([size]) * size for size in (5, 7, 3)]


@pytest.mark.parametrize("bit", [0, 7, 20, 40, 63, 64, 80, 95])
@pytest.mark.parametrize("number", [0, 4])
def test_a_damaged_head_is_found_at_once(tmp_path, bit, number):
    """In the length or its checksum, whichever bit; the message has record and byte."""
    payloads = payloads_of(9)
    path = write(tmp_path / "a.tfrecord", payloads)
    content = bytearray(path.read_bytes())
    offset = sum(len(payload) + 16 for payload in payloads[:number])
    content[offset + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)

    head = content[offset : offset + 12].hex(" ")
    message = f"length of record {number} is damaged: its checksum is wrong: got {head} at byte "
    message += f"{offset}; in .*a.tfrecord; .*the {number} records before can be read"
    if number == 0:
        message = f"not a TFRecord file, or one whose first length is damaged: got .* {head}, exp"
    with pytest.raises(DataError, match=message):
        headrace.open(path)


@pytest.mark.parametrize("place", ["data", "checksum"])
@pytest.mark.parametrize("number", [0, 4, 8])
def test_damaged_data_is_found_when_read(tmp_path, place, number):
    """Every bit of data and of its checksum counts; other records still arrive."""
    payloads = [b"some data" * (n + 1) for n in range(9)]
    path = write(tmp_path / "a.tfrecord", payloads)
    content = bytearray(path.read_bytes())
    offset = sum(len(payload) + 16 for payload in payloads[:number])
    for bit in range(32):
        at = offset + 12 + (len(payloads[number]) if place == "checksum" else 0)
        content[at + bit // 8] ^= 1 << bit % 8
        record = np.frombuffer(content, np.uint8)[offset : offset + len(payloads[number]) + 16]
        expected = f"the checksum of its {len(payloads[number])} bytes is wrong"
        with pytest.raises(ValueError, match=expected):
            TFRecord().decode("record", record.copy(), {})
        content[at + bit // 8] ^= 1 << bit % 8
    content[at] ^= 1
    path.write_bytes(content)
    records = headrace.open(path)
    came = []
    with pytest.raises(
        ReadError, match=f"got {expected}; in .*a.tfrecord, record {number}, offset {offset}"
    ):
        for batch in headrace.Loader(records, 1, order=headrace.SequentialOrder()):
            came += batch["record"]
    assert came == payloads[:number]


def test_a_head_that_changed_since_it_was_indexed():
    """The index says where a record ends; its own length must agree, and be intact."""
    record = np.frombuffer(frame(b"0123456789"), np.uint8).copy()
    assert TFRecord().decode("record", record, {}) == b"0123456789"
    with pytest.raises(ValueError, match="its length is 10 and should be 11"):
        TFRecord().decode("record", np.append(record, np.uint8(0)), {})
    for place in (0, 8):
        record[place] ^= 1
        with pytest.raises(ValueError, match="the checksum of its length is wrong"):
            TFRecord().decode("record", record, {})
        record[place] ^= 1


def test_truncated_anywhere(tmp_path):
    """At every length that is not the end of a record: how many are whole, which one is not."""
    payloads = [b"abc", b"", b"0123456789"]
    content = write(tmp_path / "a.tfrecord", payloads).read_bytes()
    ends = [0, *accumulate(len(payload) + 16 for payload in payloads)]
    path = tmp_path / "cut.tfrecord"
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        if size in ends:
            assert len(scan(path).offsets) == ends.index(size)
            continue
        number = sum(end < size for end in ends) - 1
        expected = (
            ends[number + 1]
            if size - ends[number] >= 12
            else rf"(at least {ends[number] + 16}|{ends[number + 1]})"
        )
        message = (
            f"the file is truncated: got {size} bytes, expected {expected} for record {number}"
        )
        message += (
            f", which begins at byte {ends[number]}; in .*; the {number} records before are w"
        )
        with pytest.raises(DataError, match=message):
            scan(path)


def test_a_length_beyond_all_files(tmp_path):
    """Whoever writes the checksum for it may claim 2^64 - 1 bytes."""
    for size in (2**64 - 1, 2**63, 2**63 - 1, 2**40):
        (tmp_path / "a.tfrecord").write_bytes(frame(b"abc") + head_of(size) + bytes(50))
        with pytest.raises(
            DataError, match=f"expected {19 + 16 + size} for record 1, which begins"
        ):
            headrace.open(tmp_path / "a.tfrecord")


def test_compressed_files(tmp_path):
    """TensorFlow knows GZIP and ZLIB; both are named."""
    import gzip
    import zlib

    content = write(tmp_path / "a.tfrecord", payloads_of(9)).read_bytes()
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="compressed.*got gzip"):
        headrace.open(tmp_path / "b.tfrecord")
    (tmp_path / "c.tfrecord").write_bytes(zlib.compress(content))
    with pytest.raises(
        DataError, match="not a TFRecord.*first bytes 78 9c.*ZLIB-compressed: unpack"
    ):
        headrace.open(tmp_path / "c.tfrecord")


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_an_epoch_over_shards(tmp_path, engine):
    """Each record of all shards once, in the order that the order says."""
    payloads = []
    for shard in range(4):
        some = payloads_of(40 + shard, seed=shard)
        write(tmp_path / f"train.tfrecord-{shard:05}-of-00004", some)
        payloads += some
    records = headrace.open(str(tmp_path / "train.tfrecord-*"))
    order = headrace.RandomOrder(seed=5)
    loader = headrace.Loader(records, 16, order=order, engine=engine, direct=False)

    came = [value for batch in loader for value in batch["record"]]

    indices = order.indices(np.arange(len(payloads)), len(payloads), 0)
    assert came == [payloads[index] for index in indices]


def test_as_the_tfrecord_package_has_it(tmp_path):
    """Its writer's files, and what its reader makes of them."""
    writer_module = pytest.importorskip("tfrecord.writer")
    reader_module = pytest.importorskip("tfrecord.reader")
    writer = writer_module.TFRecordWriter(str(tmp_path / "a.tfrecord"))
    for number in range(20):
        writer.write(
            {
                "image": (np.random.default_rng(number).bytes(number * 50), "byte"),
                "label": (number - 10, "int"),
                "box": ([number / 3, -1.5, 2e30], "float"),
            }
        )
    writer.close()

    truth = list(reader_module.tfrecord_loader(str(tmp_path / "a.tfrecord"), None))
    values = read(tmp_path / "a.tfrecord", TFRecord(example=True))

    assert len(values) == len(truth) == 20
    for value, true in zip(values, truth, strict=True):
        assert value["image"] == [bytes(true["image"])]
        assert (value["label"].dtype, value["label"].tolist()) == (np.int64, true["label"].tolist())
        assert (value["box"].dtype, value["box"].tolist()) == (np.float32, true["box"].tolist())


# tf.train.Example


@pytest.fixture(scope="module")
def example_type():
    """tf.train.Example, made by Google's library from example.proto and feature.proto."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields, into=file.message_type):
        made = into.add(name=name)
        for number, (field, kind, repeated, type_name) in enumerate(fields, 1):
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            made.field.add(
                name=field,
                number=number,
                label=label,
                type=kind,
                type_name=type_name and f".t.{type_name}",
            )
        return made

    message("BytesList", ("value", kinds.TYPE_BYTES, True, None))
    message("FloatList", ("value", kinds.TYPE_FLOAT, True, None))
    message("Int64List", ("value", kinds.TYPE_INT64, True, None))
    lists = ["BytesList", "FloatList", "Int64List"]
    names = ["bytes_list", "float_list", "int64_list"]
    feature = message(
        "Feature", *((n, kinds.TYPE_MESSAGE, False, t) for n, t in zip(names, lists, strict=True))
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", kinds.TYPE_MESSAGE, True, "Features.FeatureEntry"))
    entry = message(
        "FeatureEntry",
        ("key", kinds.TYPE_STRING, False, None),
        ("value", kinds.TYPE_MESSAGE, False, "Feature"),
        into=features.nested_type,
    )
    entry.options.map_entry = True
    message("Example", ("features", kinds.TYPE_MESSAGE, False, "Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def test_example(example_type):
    """All three lists, empty and long, the smallest and largest numbers, names of any letters."""
    example = example_type()
    whole = [0, 1, -1, 127, 128, -128, 300, 2**31, 2**62, 2**63 - 1, -(2**63), *range(5000)]
    floats = [0.0, -0.0, 1.5, float("inf"), 3e38, 1e-45, *np.linspace(-1, 1, 999).tolist()]
    feature = example.features.feature
    feature["whole"].int64_list.value.extend(whole)
    feature["floats"].float_list.value.extend(floats)
    feature["bytes"].bytes_list.value.extend([b"", b"\0\xff", b"x" * 300])
    feature["grüße"].int64_list.value.append(7)
    feature["no numbers"].int64_list.SetInParent()
    feature["no floats"].float_list.SetInParent()
    feature["no bytes"].bytes_list.SetInParent()
    feature["nothing"].SetInParent()
    feature[""].bytes_list.value.append(b"no name")

    found = parse_example(example.SerializeToString())

    assert set(found) == set(feature)
    assert (found["whole"].dtype, found["whole"].tolist()) == (np.int64, whole)
    assert found["floats"].dtype == np.float32
    assert found["floats"].tobytes() == np.array(floats, np.float32).tobytes()
    assert found["bytes"] == [b"", b"\0\xff", b"x" * 300]
    assert found["grüße"].tolist() == [7]
    assert (found["no numbers"].dtype, len(found["no numbers"])) == (np.int64, 0)
    assert (found["no floats"].dtype, len(found["no floats"])) == (np.float32, 0)
    assert found["no bytes"] == found["nothing"] == []
    assert found[""] == [b"no name"]
    assert parse_example(b"") == {}


def delimited(number, content):
    assert number < 16 and len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def test_example_in_ways_that_few_write(example_type):
    """Numbers that are not packed, unknown fields, parts that merge, a kind or name given twice."""
    unpacked = b"\x08\x05\x08" + b"\xff" * 9 + b"\x01" + delimited(1, b"\x03\x80\x01")
    floats = b"\x0d\0\0\x80\x3f" + delimited(1, b"\0\0\0\x40\0\0\x40\x40")
    unknown = b"\x20\x01\x29" + bytes(8) + b"\x35" + bytes(4) + delimited(7, b"?")

    def entry(name, feature):
        return delimited(1, delimited(1, name) + delimited(2, feature))

    features = entry(b"i", unknown + delimited(3, unpacked) + delimited(3, b"\x08\x09"))
    features += entry(b"f", delimited(1, b"") + delimited(2, floats))
    features += unknown + entry(b"twice", delimited(3, b"\x08\x01"))
    content = unknown + delimited(1, features)
    content += delimited(1, entry(b"twice", delimited(3, b"\x08\x02")))

    found = parse_example(content)

    assert {name: value.tolist() for name, value in found.items()} == {
        "i": [5, -1, 3, 128, 9],
        "f": [1, 2, 3],
        "twice": [2],
    }
    truth = example_type.FromString(content).features.feature
    assert list(truth["i"].int64_list.value) == found["i"].tolist()
    assert list(truth["f"].float_list.value) == found["f"].tolist()
    assert list(truth["twice"].int64_list.value) == found["twice"].tolist()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\x0a", "without an end"),
        (b"\x0a\x05abc", "or one that is cut"),
        (b"\x0b", "wire type 3 at byte 1"),
        (b"\xff" * 11, "without an end"),
        (b"\x08\x01", "a number where a message should be"),
        (delimited(1, delimited(1, delimited(2, delimited(3, delimited(1, b"\x80"))))), "end"),
        (
            delimited(
                1, delimited(1, delimited(2, delimited(3, delimited(1, b"\x80" * 10 + b"\1"))))
            ),
            "end",
        ),
        (
            delimited(1, delimited(1, delimited(2, delimited(2, b"\x08\x01")))),
            "in a list of floats",
        ),
        (
            delimited(1, delimited(1, delimited(2, delimited(2, delimited(1, b"abc"))))),
            "multiple of",
        ),
        (delimited(1, delimited(1, delimited(1, b"\xff"))), "codec can't decode"),
    ],
)
def test_what_is_no_example(content, message):
    """One error, which the loader gives a file and a record."""
    with pytest.raises(ValueError, match=message):
        parse_example(content)


def test_examples_cut_anywhere(example_type):
    """A ValueError, or a message that Google's library reads too."""
    example = example_type()
    example.features.feature["a"].int64_list.value.extend([1, 2, 300])
    example.features.feature["b"].bytes_list.value.append(b"abcd")
    content = example.SerializeToString()
    for size in range(len(content)):
        try:
            found = parse_example(content[:size])
        except ValueError:
            continue
        truth = example_type.FromString(content[:size]).features.feature
        assert set(found) == set(truth)
