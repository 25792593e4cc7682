"""Tar against the standard library's tarfile, GNU tar, and the webdataset package."""

import io
import os
import shutil
import subprocess
import tarfile

import numpy as np
import pytest

import headrace
from headrace.data.formats import detect
from headrace.data.formats.tar import Tar, _Chain
from headrace.data.formats.walking import walk_file
from headrace.errors import DataError, ReadError
from headrace.progress import Silent

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path, members, kind="ustar", **about):
    """An archive of (name, content) by the standard library."""
    with tarfile.open(path, "w", format=FORMATS[kind], encoding="utf-8") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for attribute, value in about.items():
                setattr(member, attribute, value)
            archive.addfile(member, io.BytesIO(content))
    return path


def samples(num, seed=0, longest=2000, names="{:04}"):
    """Members of so many records, each with an image and a label."""
    generator = np.random.default_rng(seed)
    members = []
    for number in range(num):
        name = names.format(number)
        members.append((f"{name}.jpg", generator.bytes(generator.integers(0, longest))))
        members.append((f"{name}.cls", str(number).encode()))
    return members


def scan(path):
    return Tar().scan(path, Silent())


def found(path):
    """Per record its fields' bytes, sliced from the file where the tables say."""
    content, tables = path.read_bytes(), scan(path)
    (num_records,) = {table.num_records for table in tables.values()}
    return [
        {
            field: content[table.offsets[n] : table.offsets[n] + table.lengths[n]]
            for field, table in tables.items()
            if table.lengths[n] >= 0
        }
        for n in range(num_records)
    ]


def grouped(members):
    """The convention, written down once more: neighbours of one name are one record."""
    records = {}
    for name, content in members:
        folder, _, base = name.rpartition("/")
        stem, _, extension = base.partition(".")
        records.setdefault((folder, stem), {})[extension.lower()] = content
    return list(records.values())


def by_webdataset(*paths):
    """What that package makes of the archives, one after another."""
    tariterators = pytest.importorskip("webdataset.tariterators")
    records = []
    for path in paths:
        with path.open("rb") as stream:
            members = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            for sample in tariterators.group_by_keys(members):
                about = ("__key__", "__url__", "__local_path__")
                records.append({key: sample[key] for key in sample if key not in about})
    return records


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mtime", [0, 1.5])
@pytest.mark.parametrize("longest", [100, 1300])
def test_every_kind_of_archive(tmp_path, kind, mtime, longest):
    """As tarfile writes them; a fraction of a second gives each member of PAX a second header."""
    members = samples(40, longest=longest, names="train/{:04}")
    path = write(tmp_path / "a.tar", members, kind, mtime=mtime)

    assert found(path) == grouped(members) == by_webdataset(path)
    assert len(scan(path)["jpg"].offsets) == 40


@pytest.mark.parametrize("kind", FORMATS)
def test_detection(tmp_path, kind):
    """By the magic number or the name; before POSIX there was no number."""
    path = write(tmp_path / "shard-000000", samples(2), kind)
    assert detect(path) == "tar"
    content = bytearray(path.read_bytes())
    content[257:265] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(DataError, match="format is not known"):
        detect(path)
    assert detect(path.rename(tmp_path / "a.tar")) == "tar"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("length", [99, 100, 101, 150, 255, 256, 300])
def test_long_names(tmp_path, kind, length):
    """Prefixes, GNU's long names and PAX paths; each name here differs only at its end."""
    folder = "a" * 30 + "/" + "b" * 60 + "/"
    members = [
        (f"{folder}{number:0{length - len(folder) - 4}}.{extension}", bytes([number]) * number)
        for number in range(9)
        for extension in ("jpg", "cls")
    ]
    members.insert(5, ("short.jpg", b"short"))
    if kind == "ustar" and length > 190:
        with pytest.raises(ValueError, match="name is too long"):
            write(tmp_path / "a.tar", members, kind)
        return
    path = write(tmp_path / "a.tar", members, kind)

    assert found(path) == grouped(members)
    # The short name parts two neighbours, which webdataset takes for two records.
    members.pop(5)
    path = write(tmp_path / "a.tar", members, kind)
    assert found(path) == by_webdataset(path)


def test_long_links_of_gnu_tar(tmp_path):
    """A folder's name of 300 characters; and the target of a link, kind K, which is passed over."""
    long = "f" * 300
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        folder = tarfile.TarInfo(long)
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("README")
        link.type, link.linkname = tarfile.SYMTYPE, long
        archive.addfile(link)
        member = tarfile.TarInfo("a.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))

    assert found(tmp_path / "a.tar") == [{"txt": b"abc"}]


@pytest.mark.parametrize("kind", FORMATS)
def test_owners_beyond_octal_digits(tmp_path, kind):
    """User ids over 2^21 are written in base 256 or in an extended header."""
    members = samples(9)
    if kind == "ustar":
        with pytest.raises(ValueError, match="overflow"):
            write(tmp_path / "a.tar", members, kind, uid=2**30)
        return
    path = write(tmp_path / "a.tar", members, kind, uid=2**30, mtime=123456789.25, uname="ü" * 20)
    assert found(path) == grouped(members) == by_webdataset(path)


def test_names_with_dots(tmp_path):
    """The first dot after the last slash cuts; capitals do not count in extensions."""
    names = "22.05.png 22.06.PNG a.b/1.seg.png a.b/1.Seg.json x.tar.gz ./d/e.jpg ü.Ünï 0. .b/c.d"
    members = [(name, name.encode()) for name in names.split()]
    path = write(tmp_path / "a.tar", members, "pax")

    assert found(path) == by_webdataset(path)
    assert [list(record) for record in found(path)] == [
        ["05.png", "06.png"],
        ["seg.png", "seg.json"],
        ["tar.gz"],
        ["jpg"],
        ["ünï"],
        [""],
        ["d"],
    ]


def test_what_is_passed_over(tmp_path):
    """Folders, devices, names without extension, hidden ones and the archive's own files."""
    path = tmp_path / "a.tar"
    names = "README a.b/c .hidden .hidden.jpg __meta__ __meta__/x.json __a__b__/x.json ____/y.z"
    taken = "__x.jpg __x__.jpg _a_/x.jpg d/__meta__/x.json"
    with tarfile.open(path, "w") as archive:
        for name in ("d", "d.e"):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        fifo = tarfile.TarInfo("d.fifo")
        fifo.type = tarfile.FIFOTYPE
        archive.addfile(fifo)
        for name in f"{names} {taken}".split():
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))

    assert found(path) == [{"jpg": b"abc"}, {"jpg": b"abc"}, {"jpg": b"abc"}, {"json": b"abc"}]
    assert by_webdataset(path) == found(path)


def test_hidden_files_in_folders(tmp_path):
    """Macs leave files such as ._1.jpg beside 1.jpg, which webdataset takes for a record "d/"."""
    path = write(tmp_path / "a.tar", [("d/._1.jpg", b"no"), ("d/1.jpg", b"yes")])
    assert found(path) == [{"jpg": b"yes"}]


def test_members_that_are_no_neighbours(tmp_path):
    """They are one record all the same, in the order of the first of each."""
    members = samples(9)
    apart = members[::2] + members[::-2]
    path = write(tmp_path / "a.tar", apart)

    assert found(path) == grouped(members)
    assert len(by_webdataset(path)) > 9


@pytest.mark.parametrize("names", ["a.jpg b.jpg a.jpg", "a.jpg a.jpg", "a.jpg x/a.jpg a.JPG"])
def test_two_members_of_one_name(tmp_path, names):
    """Which of them is meant nobody knows."""
    path = write(tmp_path / "a.tar", [(name, b"x") for name in names.split()])
    last = 1024 * names.count(" ")
    message = (
        f"two members of the archive have one name: got a.[jJ].*; in .*at bytes 0 and {last}; "
    )
    with pytest.raises(DataError, match=message):
        headrace.open(path)


def test_records_that_lack_a_field(tmp_path):
    """The others can be read; of the field itself the first record without it is named."""
    path = write(
        tmp_path / "a.tar",
        [("1.jpg", b"1"), ("1.txt", b"one"), ("2.jpg", b"2"), ("3.txt", b""), ("3.jpg", b"3")],
    )

    tables = scan(path)

    assert tables["txt"].lengths.tolist() == [3, -1, 0]
    assert tables["txt"].first_missing == 1
    records = headrace.open(path, fields=("jpg",))
    loader = headrace.Loader(records, 3, order=headrace.SequentialOrder())
    assert list(loader) == [{"jpg": [b"1", b"2", b"3"]}]
    with pytest.raises(DataError, match="record 1 lacks the field 'txt'.*fields="):
        headrace.open(path)


def test_links_are_refused(tmp_path):
    """To pass over them would lose records without a word."""
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name in ("README", "a/1.jpg"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = kind, "b.jpg"
                archive.addfile(link)
        with pytest.raises(
            DataError, match="a link in .*: got a/1.jpg; in .*byte 512; .*--derefer"
        ):
            headrace.open(tmp_path / "a.tar")


@pytest.mark.skipif(not shutil.which("tar"), reason="no tar")
@pytest.mark.parametrize("kind", ["gnu", "pax", "ustar", "v7", "oldgnu"])
def test_archives_of_the_tar_command(tmp_path, kind):
    """Folders, times and owners as it writes them; sparse files only where they are kept so."""
    (tmp_path / "d").mkdir()
    members = samples(20)
    for name, content in members:
        (tmp_path / "d" / name).write_bytes(content)
    command = ["tar", f"--format={kind}", "--sort=name", "-cf", "a.tar", "d"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("another tar")

    expected = [dict(sorted(record.items())) for record in grouped(members)]
    assert found(tmp_path / "a.tar") == expected == by_webdataset(tmp_path / "a.tar")

    (tmp_path / "d" / "0003.jpg").write_bytes(b"")
    os.truncate(tmp_path / "d" / "0003.jpg", 1 << 20)
    command[2:2] = ["--sparse"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        return  # formats without sparse members
    with tarfile.open(tmp_path / "a.tar") as truth:
        is_sparse = truth.getmember("d/0003.jpg").issparse()
    if is_sparse:
        with pytest.raises(
            DataError, match="is sparse, so it cannot.*got d/(0003.jpg|GNUSparse).*"
        ):
            headrace.open(tmp_path / "a.tar")


# Headers made by hand


def header(name=b"a.jpg", size=b"00000000003\0", kind=b"0", magic=b"ustar\x0000", prefix=b""):
    """A header of these words, right or wrong, with the right checksum."""
    block = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0")
    block += b"00000000000\0" + b" " * 8 + kind + bytes(100) + magic.ljust(8, b"\0") + bytes(80)
    block += prefix.ljust(155, b"\0") + bytes(12)
    assert len(block) == 512
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def padded(content):
    return content + bytes(-len(content) % 512)


def extended(content, kind=b"x"):
    return header(b"x", b"%011o\0" % len(content), kind) + padded(content)


def pax(key, value):
    """A record of an extended header: its own length in decimal digits, a blank, the rest."""
    rest = b" " + key + b"=" + value + b"\n"
    length = next(n for n in range(9999) if n == len(rest) + len(str(n)))
    return str(length).encode() + rest


def archive(path, *parts):
    path.write_bytes(b"".join(parts) + bytes(1024))
    return path


DATA = padded(b"abc")


def test_the_tests_own_headers_are_right(tmp_path):
    """What these make, tarfile reads."""
    path = archive(tmp_path / "a.tar", extended(pax(b"path", b"b.txt")), header(), DATA)
    with tarfile.open(path) as truth:
        assert [member.name for member in truth] == ["b.txt"]
        assert truth.extractfile("b.txt").read() == b"abc"


@pytest.mark.parametrize(
    "parts",
    [
        [header(size=b"\x80" + bytes(10) + b"\x03"), DATA],
        [header(size=b"          3 "), DATA],
        [header(size=b"3"), DATA],
        [header(size=b"000000000003"), DATA],
        [header(magic=b"ustar  \0"), DATA],
        [header(magic=b"ustar  \0", prefix=b"no prefix"), DATA],
        [header(magic=b""), DATA],
        [header(prefix=b"d"), DATA],
        [header(kind=b"\0"), DATA],
        [header(kind=b"7"), DATA],
        [header(b"d.e/", b"00000000777\0", b"\0"), header(), DATA],
        [header(b"d.e/", b"00000000777\0", b"5"), header(), DATA],
        [header(kind=b"V"), DATA, header(kind=b"D"), DATA, header(), DATA],
        [extended(pax(b"mtime", b"1.5")), header(), DATA],
        [extended(pax(b"size", b"3")), header(size=b"0"), DATA],
        [extended(pax(b"path", b"b.jpg")), header(b"no"), DATA],
        [extended(pax(b"comment", b"x" * 9000) + pax(b"path", b"c.jpg")), header(b"no"), DATA],
        [extended(pax(b"comment", b"path=x.no\n9 size=1\n")), header(), DATA],
        [extended(pax(b"path", b"b.jpg"), b"X"), header(b"no"), DATA],
        [extended(b"b.jpg\0", b"L"), header(b"no"), DATA],
        [extended(b"b.jpg\0", b"L"), extended(b"c.jpg\0", b"K"), header(b"no"), DATA],
        [extended(pax(b"comment", b"x"), b"g"), header(), DATA],
        [extended(pax(b"path", b"b.jpg"), b"g"), header(b"no"), DATA],
        [extended(pax(b"path", b"b.jpg"), b"g"), extended(pax(b"size", b"3")), header(b"no"), DATA],
        [extended(pax(b"path", b"no"), b"g"), extended(pax(b"path", b"a.jpg")), header(), DATA],
        [extended(pax(b"size", b"3"), b"g"), header(size=b"7"), DATA],
    ],
)
def test_headers_of_every_kind(tmp_path, parts):
    """Base 256, blanks, GNU's magic number, none, prefixes, extended and global headers."""
    path = archive(tmp_path / "a.tar", *parts)
    assert found(path) == [{"jpg": b"abc"}] == by_webdataset(path)

    path = archive(tmp_path / "b.tar", header(b"1.jpg"), DATA, *parts, header(b"3.jpg"), DATA)
    if all(part[156:157] != b"g" for part in parts):
        assert found(path) == [{"jpg": b"abc"}] * 3


def test_an_empty_path_in_an_extended_header(tmp_path):
    """Takes back what a global header said, by POSIX; tarfile takes it for a name."""
    path = archive(tmp_path / "a.tar", extended(pax(b"path", b"")), header(), DATA)
    assert found(path) == [{"jpg": b"abc"}]


def test_a_checksum_of_signed_bytes(tmp_path):
    """Some once summed bytes over 127 as negative numbers."""
    block = header("ü.jpg".encode())
    block = block[:148] + b"%06o\0 " % (int(block[148:154], 8) - 512) + block[156:]
    path = archive(tmp_path / "a.tar", block, DATA)
    assert found(path) == [{"jpg": b"abc"}] == by_webdataset(path)


@pytest.mark.parametrize(
    "parts, message",
    [
        (
            [header(kind=b"S")],
            "is sparse, so it cannot be read in place: got a.jpg; in .*byte 1024",
        ),
        ([extended(pax(b"GNU.sparse.major", b"1")), header()], "is sparse.*at byte 1024"),
        ([extended(pax(b"GNU.sparse.size", b"1"), b"g"), header()], "is sparse.*at byte 1024"),
        ([header(kind=b"M")], "continues in another file.*got a.jpg.*--multi-volume"),
        ([header(size=b"1x")], "header of the archive is damaged: got a size of 31 78.*byte 1024"),
        ([header(size=b"\xff" * 12)], "damaged: got a size of ff ff.*byte 1024"),
        ([extended(b"nonsense"), header()], "an extended header with b'nonsense'; in .*byte 1024"),
        ([extended(b"99 path=x\n"), header()], "an extended header with b'99 path=x"),
        ([extended(b"0 path=x\n"), header()], "an extended header with b'0 path=x"),
        ([extended(b"8 path=x\n"), header()], "an extended header with b'8 path=x"),
        ([extended(pax(b"size", b"-1")), header()], "damaged: got a size of -1; in .*byte 2048"),
        ([extended(pax(b"path", b"b.jpg")), bytes(512)], "an extended header without a member"),
        ([header(kind=b"x", size=b"77777777777\0")], "an extended header of 8589934591 bytes"),
        ([header(size=b"\x80" + b"\xff" * 11)], f"expected at least {1536 + 2**88 - 1} for member"),
        ([header()[:500]], "damaged: got the checksum .* in octal; in .*byte 1024"),
        ([b"garbage" * 100], "damaged: got .*byte 1024; copy or write it again"),
    ],
)
def test_headers_that_are_refused(tmp_path, parts, message):
    """Each says what it is, and where."""
    path = archive(tmp_path / "a.tar", header(b"0.jpg"), DATA, *parts, DATA)
    with pytest.raises(DataError, match=message):
        scan(path)


def test_any_byte_of_a_header_changed(tmp_path):
    """The checksum sees all of them."""
    parts = [header(b"0.jpg"), DATA, extended(pax(b"mtime", b"1.5")), header(), DATA]
    path = archive(tmp_path / "a.tar", *parts)
    content = path.read_bytes()
    for begin in (0, 1024, 2048):
        for place in (0, 50, 99, 124, 134, 148, 152, 156, 160, 257, 300, 345, 511):
            for bit in (0, 6):
                changed = bytearray(content)
                changed[begin + place] ^= 1 << bit
                path.write_bytes(changed)
                where = f"in .*a.tar, at byte {begin}"
                with pytest.raises(DataError, match=f"(header.* damaged): got .*{where}"):
                    scan(path)


def test_truncated_anywhere(tmp_path):
    """What is cut is named; an archive may lack its end, and the padding of its last member."""
    members = [("a.jpg", b"x" * 600), ("b.txt", b""), ("c.jpg", b"y" * 700)]
    content = write(tmp_path / "a.tar", members, "pax", mtime=0.5).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as truth:
        ends = [member.offset_data + member.size for member in truth]
        offsets = [member.offset for member in truth]
    path = tmp_path / "cut.tar"
    for size in range(1, len(content), 19):
        path.write_bytes(content[:size])
        num_whole = sum(end <= size for end in ends)
        if num_whole == 3 or (num_whole and offsets[num_whole] >= size):
            assert len(found(path)) == num_whole
            continue
        message = f"archive is truncated: got {size} bytes, expected at least .* byte "
        message += f"{offsets[num_whole]}; in .*cut.tar; .*all members before that one are whole"
        with pytest.raises(DataError, match=message):
            scan(path)
    path.write_bytes(content[: ends[2] - 1])
    with pytest.raises(DataError, match=f"expected at least {ends[2]} for member c.jpg, which beg"):
        scan(path)


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 513, 1024, 100_000, 5 << 20])
def test_zeros_at_the_end(tmp_path, num_bytes):
    """Blocking factors and pre-allocated files leave any number of them."""
    path = write(tmp_path / "a.tar", samples(3))
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(padded(content) + bytes(num_bytes))
    assert found(path) == grouped(samples(3))


def test_archives_joined_by_cat(tmp_path):
    """All other readers stop at the end of the first and lose the rest."""
    first = write(tmp_path / "a.tar", samples(2)).read_bytes()
    path = tmp_path / "b.tar"
    path.write_bytes(first * 2)
    message = f"something follows the end of the archive: got byte 0x30 at byte {len(first)}"
    with pytest.raises(DataError, match=f"{message}, expected zeros.*b.tar; if archives were joi"):
        headrace.open(path)


def test_archives_without_records(tmp_path):
    """Empty, of files without extensions, no archive at all, or nothing."""
    path = tmp_path / "a.tar"
    for members in ([], [("README", b"hello")]):
        with pytest.raises(DataError, match="archive has no record: expected members with extens"):
            headrace.open(write(path, members))
    path.write_bytes(b"call me Ishmael" * 100)
    with pytest.raises(DataError, match="not a tar archive, or one whose first header is damaged"):
        headrace.open(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="archive has no record.*leave it out"):
        headrace.open(path)


def test_too_many_fields(tmp_path):
    """Names of records with dots in them make a field of each."""
    names = [(f"a.{number}.jpg", b"x") for number in range(257)]
    write(tmp_path / "a.tar", names[:256])
    assert len(found(tmp_path / "a.tar")[0]) == 256
    write(tmp_path / "a.tar", names)
    with pytest.raises(DataError, match=r"too many extensions .*'0.jpg', .* 256 at most.*rename"):
        scan(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("piece_bytes", [512, 1024, 1536, 10_000])
def test_pieces_of_any_size(tmp_path, kind, piece_bytes):
    """Headers apart from their extended ones, and members longer than several pieces."""
    members = samples(40, longest=9000) + samples(20, names="x" * 150 + "/{}")
    path = write(tmp_path / "a.tar", members, kind, mtime=0.5 if kind == "pax" else 0)
    whole = scan(path)

    with path.open("rb") as file:
        chain = _Chain(path, file.fileno())
        walk_file(path, chain.step, Silent(), piece_bytes)
        tables = chain.tables()

    assert list(tables) == list(whole)
    for field, table in tables.items():
        assert np.array_equal(table.offsets, whole[field].offsets)
        assert np.array_equal(table.lengths, whole[field].lengths)


def test_large_members_among_small(tmp_path):
    """Data of more than 256 KiB is passed over, and small members are found again after it."""
    large = [(f"{number}.mp4", bytes([number]) * (3 << 20)) for number in range(3)]
    members = samples(30) + large + samples(30, names="x{}") + large[:0]
    path = write(tmp_path / "a.tar", members, "pax", mtime=0.5)

    assert found(path) == grouped(members)


def test_beyond_eight_gibibytes(tmp_path):
    """More than octal digits can say, by either kind of archive; offsets over 2^33."""
    for kind in ("gnu", "pax"):
        path = tmp_path / f"{kind}.tar"
        large, small = tarfile.TarInfo("a.bin"), tarfile.TarInfo("b.bin")
        large.size, small.size = 2**33 + 5, 3
        with path.open("wb") as file:
            file.write(large.tobuf(FORMATS[kind]))
            file.seek(2**33 + 512, os.SEEK_CUR)
            file.write(small.tobuf(FORMATS[kind]) + padded(b"abc") + bytes(1024))

        table = scan(path)["bin"]

        assert table.lengths.tolist() == [2**33 + 5, 3]
        with path.open("rb") as file:
            file.seek(int(table.offsets[1]))
            assert file.read(3) == b"abc"


# Through the loader


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_an_epoch_over_shards(tmp_path, engine):
    """Each record of all shards once, in the order that the order says; both fields together."""
    members = []
    for shard in range(4):
        some = samples(30 + shard, seed=shard, names=f"{shard}/{{}}")
        write(tmp_path / f"train-{shard:06}.tar", some, "pax", mtime=0.5)
        members += some
    records = headrace.open(str(tmp_path / "train-*.tar"))
    order = headrace.RandomOrder(seed=5)
    loader = headrace.Loader(records, 16, order=order, engine=engine, direct=False)

    came = [
        {"jpg": jpg, "cls": cls}
        for batch in loader
        for jpg, cls in zip(batch["jpg"], batch["cls"], strict=True)
    ]

    truth = grouped(members)
    assert came == [truth[i] for i in order.indices(np.arange(len(truth)), len(truth), 0)]
    shards = sorted(tmp_path.glob("*.tar"))
    assert sorted(came, key=str) == sorted(by_webdataset(*shards), key=str)


def test_only_the_fields_asked_for_are_read(tmp_path):
    """Labels cost no bytes of images."""
    members = samples(50, longest=5000)
    write(tmp_path / "a.tar", members)
    total = sum(len(content) for name, content in members if name.endswith("cls"))
    records = headrace.open(tmp_path / "a.tar", fields=("cls",))
    loader = headrace.Loader(records, 10, direct=False)

    labels = [value for batch in loader for value in batch["cls"]]

    assert sorted(map(int, labels)) == list(range(50))
    assert loader.bytes_read == total
    loader = headrace.Loader(headrace.open(tmp_path / "a.tar"), 10, fields=("jpg",), direct=False)
    sizes = [len(value) for batch in loader for value in batch["jpg"]]
    assert loader.bytes_read == sum(sizes)


def test_values_by_extension(tmp_path):
    """As webdataset decodes them, but arrays are not pickled objects; the rest stays bytes."""
    image_module = pytest.importorskip("PIL.Image")
    autodecode = pytest.importorskip("webdataset.autodecode")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    packed = {"png": io.BytesIO(), "jpg": io.BytesIO(), "npy": io.BytesIO()}
    image_module.fromarray(pixels).save(packed["png"], "png")
    image_module.fromarray(pixels).save(packed["jpg"], "jpeg")
    np.save(packed["npy"], pixels)
    members = [(f"1.{extension}", content.getvalue()) for extension, content in packed.items()]
    members += [("1.seg.png", members[0][1]), ("1.cls", b"42"), ("1.json", b'{"a": [1, null]}')]
    members += [("1.txt", "grüße".encode()), ("1.bin", b"\0\1")]
    path = write(tmp_path / "a.tar", members)

    records = headrace.open(path, decoded=True)
    (batch,) = headrace.Loader(records, 1)

    decoder = autodecode.Decoder([autodecode.imagehandler("rgb8")])
    (truth,) = [decoder({"__key__": "1", **sample}) for sample in by_webdataset(path)]
    assert (truth["png"] == pixels).all()
    for field, (value,) in batch.items():
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.tolist()) == (np.uint8, truth[field].tolist())
        else:
            assert value == truth[field]
    assert {type(values[0]) for values in batch.values()} == {np.ndarray, int, dict, str, bytes}


@pytest.mark.parametrize(
    "extension, content, message",
    [
        ("cls", b"cat", "invalid literal for int"),
        ("json", b"{", "Expecting property name"),
        ("txt", b"\xff", "can't decode byte 0xff"),
        ("npy", b"nonsense", "no .npy array|pickle"),
        ("npy", b"", "no .npy array: No data left"),
        ("png", b"nonsense", "no image: cannot identify image file"),
        ("jpg", b"", "no image: cannot identify image file"),
    ],
)
def test_values_that_are_damaged(tmp_path, extension, content, message):
    """The file, the record and the byte are named."""
    pytest.importorskip("PIL.Image")
    path = write(tmp_path / "a.tar", [(f"1.{extension}", content)])
    loader = headrace.Loader(headrace.open(path, decoded=True), 1)
    with pytest.raises(ReadError, match=f"record is damaged: got .*({message}).*a.tar, record 0"):
        list(loader)


def test_without_pillow(tmp_path, monkeypatch):
    """Images alone need it."""
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    path = write(tmp_path / "a.tar", [("1.jpg", b"x"), ("1.cls", b"7")])
    assert next(iter(headrace.Loader(headrace.open(path, decoded=True), 1, fields=("cls",)))) == {
        "cls": [7]
    }
    with pytest.raises(headrace.HeadraceError, match="without Pillow; pip install pillow, or take"):
        list(headrace.Loader(headrace.open(path, decoded=True), 1))
