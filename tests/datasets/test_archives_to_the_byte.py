"""Unpacking at each limit: the last byte, member, folder and header that is taken, and the first that is refused."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from paceline.datasets import archives, growth
from paceline.datasets.archives import unpack


def tarred(*members, kind=tarfile.REGTYPE):
    """The bytes of a tar archive of these (name, content); content None is a folder."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (kind, len(content))
            tar.addfile(info, io.BytesIO(content or b""))
    return whole.getvalue()


def zipped(path, *members, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def found(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


PACKED = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
"""How each kind of archive is packed."""


@pytest.mark.parametrize("kind", PACKED)
def test_every_kind_of_tar_comes_out_with_its_folders_and_files(tmp_path, kind):
    deep = "/".join("abc") + "/x.csv"
    members = [(deep, b"1"), ("empty/deep", None), ("empty/deep", None), ("empty/deep/y", b"22"), ("a/b", None)]
    (tmp_path / "x").write_bytes(PACKED[kind](tarred(*members)))
    files = unpack(tmp_path / "x", tmp_path / "out")
    assert files == [tmp_path / "out" / deep, tmp_path / "out" / "empty/deep/y"]
    assert found(tmp_path / "out") == {deep: b"1", "empty/deep/y": b"22"}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "x"]


def test_a_zip_comes_out_with_its_folders_and_names_of_windows(tmp_path):
    archive = zipped(tmp_path / "x.zip", ("a/b/", b""), ("a/", b""), ("c\\d.csv", b"1"), ("e/f:g", b"2"))
    unpack(archive, tmp_path / "out")
    assert found(tmp_path / "out") == {"c/d.csv": b"1", "e/f:g": b"2"}
    assert (tmp_path / "out" / "a" / "b").is_dir()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_may_grow_to_its_limit_and_not_by_a_byte_more(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(growth, "MOST_TIMES", 1)
    monkeypatch.setattr(growth, "FREE_BYTES", 30_000)
    for beyond in (0, 1):
        members = [("a", b"x" * 10_000), ("folder/", b""), ("b", b"y" * 20_000 + b"z" * beyond)]
        path = tmp_path / f"{beyond}"
        if kind == "zip":
            zipped(path, *members, kind=zipfile.ZIP_DEFLATED)
        else:
            path.write_bytes(gzip.compress(tarred(*[(name, content or None) for name, content in members])))
        if beyond:
            with pytest.raises(ValueError, match="member 'b' makes it grow to over 1 times its size; nothing was unp"):
                unpack(path, tmp_path / f"out{beyond}")
        else:
            assert sum(map(len, found_after(path, tmp_path / "out").values())) == 30_000


def found_after(archive, folder):
    unpack(archive, folder)
    return found(folder)


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_size_that_is_read_counts_and_not_the_one_that_is_declared(tmp_path, beyond):
    target = tmp_path / "target"
    target.mkdir()
    member = ("a", 1, io.BytesIO(b"x" * (50 + beyond)))
    if beyond:
        with pytest.raises(ValueError, match="member 'a' makes it grow"):
            archives._written(tmp_path / "x", member, target, 50)
        return
    assert archives._written(tmp_path / "x", member, target, 50) == 50
    assert archives._written(tmp_path / "x", ("b", 0, None), target, 50) == 0
    with pytest.raises(ValueError, match="member 'c' makes it grow"):
        archives._written(tmp_path / "x", ("c", 51, io.BytesIO(b"x")), target, 50)
    with pytest.raises(FileExistsError):
        archives._written(tmp_path / "x", ("a", 1, io.BytesIO(b"y")), target, 50)


def test_as_many_members_and_folders_as_said_are_taken_and_one_more_refused(tmp_path, monkeypatch):
    assert (archives.MOST_MEMBERS, archives.MOST_FOLDERS) == (100_000, 64)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    assert len(unpack(zipped(tmp_path / "3", *[(str(k), b"") for k in range(3)]), tmp_path / "out")) == 3
    with pytest.raises(ValueError, match="holds more than 3 members; nothing was unpacked"):
        unpack(zipped(tmp_path / "4", *[(str(k), b"") for k in range(4)]), tmp_path / "more")
    assert len(unpack(zipped(tmp_path / "deep", ("d/" * 63 + "x", b"")), tmp_path / "deep_out")) == 1
    with pytest.raises(ValueError, match="lies deeper than 64 folders; nothing was unpacked"):
        unpack(zipped(tmp_path / "deeper", ("d/" * 64 + "x", b"")), tmp_path / "deeper_out")


@pytest.mark.parametrize("beyond", [0, 1])
def test_what_is_read_of_a_tar_is_its_growth_and_a_megabyte_of_headers(tmp_path, monkeypatch, beyond):
    monkeypatch.setattr(growth, "MOST_TIMES", 1)
    monkeypatch.setattr(growth, "FREE_BYTES", 30_000)
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(bytes(30_000 + (1 << 20) + beyond)))
    with archives.ExitStack() as stack:
        stream = archives._decompressed(path, stack)
        if beyond:
            with pytest.raises(ValueError, match="member 'its headers' makes it grow"):
                stream.read()
        else:
            assert len(stream.read()) == 30_000 + (1 << 20)


@pytest.mark.parametrize("kind", archives.FACTS)
@pytest.mark.parametrize(("size", "taken"), [(0, True), (1 << 20, True), ((1 << 20) + 1, False), (-1, False)])
def test_a_header_with_facts_has_a_megabyte_at_most(kind, size, taken):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    block = info.tobuf(tarfile.GNU_FORMAT)[:512]
    if taken:
        assert archives._Header.frombuf(block, "utf-8", "strict").size == size
        return
    with pytest.raises(ValueError, match=f"^a header has {size} bytes, but at most 1048576 are read$"):
        archives._Header.frombuf(block, "utf-8", "strict")


def test_a_file_may_be_larger_than_a_header():
    info = tarfile.TarInfo("x")
    info.size = 1 << 30
    assert archives._Header.frombuf(info.tobuf(tarfile.GNU_FORMAT), "utf-8", "strict").size == 1 << 30


@pytest.mark.parametrize(("code", "taken"), [(30, True), (31, False)])
def test_an_xz_dictionary_of_128_megabytes_is_taken_and_one_of_192_refused(code, taken):
    small = bytearray(lzma.compress(b"content", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}]))
    small[small.index(b"\x21\x01", 12) + 2] = code
    size = (small[12] + 1) * 4
    small[12 + size - 4 : 12 + size] = zlib.crc32(bytes(small[12 : 12 + size - 4])).to_bytes(4, "little")
    reader = archives._Unxz(io.BytesIO(bytes(small)))
    if taken:
        assert (reader.read(), reader.read()) == (b"content", b"")
        return
    with pytest.raises(lzma.LZMAError, match="Memory usage limit"):
        reader.read()


def test_an_xz_stream_is_read_in_pieces_of_any_size_to_its_end():
    content = bytes(range(256)) * 500
    reader, pieces = archives._Unxz(io.BytesIO(lzma.compress(content))), []
    while piece := reader.read(1000):
        pieces.append(piece)
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 1000
    cut = archives._Unxz(io.BytesIO(lzma.compress(content)[:-20]))
    with pytest.raises(EOFError, match="the xz stream is cut"):
        b"".join(iter(lambda: cut.read(1000), b""))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_checksum_at_the_end_is_looked_at(tmp_path, kind):
    noise = np.random.default_rng(0).bytes(1 << 20)  # much more than is read at once
    packed = bytearray(PACKED[kind](tarred(("a", noise))))
    packed[{"gz": -8, "bz2": -4, "xz": -30}[kind]] ^= 0x10
    (tmp_path / "x").write_bytes(packed)
    with pytest.raises(
        ValueError, match=f"^{tmp_path / 'x'}: is truncated, damaged or locked: .*; nothing was unpacked$"
    ):
        unpack(tmp_path / "x", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sparse_file_and_rare_compression_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(tarred(("a", b"1" * 512), kind=tarfile.GNUTYPE_SPARSE))
    with pytest.raises(ValueError, match="is a link or a device, or sparse; nothing was unp"):
        unpack(tmp_path / "x", tmp_path / "out")
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(ValueError, match="member 'a' is compressed in a rare way; nothing was unpacked"):
            unpack(zipped(tmp_path / f"{kind}", ("a", b"1"), kind=kind), tmp_path / "out")


@pytest.mark.parametrize("name", ["/a", "a/..", "C:a", "a\0b"])
def test_a_name_that_leads_outside_is_said_once(tmp_path, name):
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ValueError, match="would be written outside the folder; nothing was unpacked"):
        archives._written(tmp_path / "x", (name, 1, io.BytesIO(b"1")), target, 50)
    (tmp_path / "t").write_bytes(tarred((name.replace("\0", "/../"), b"1")))
    with pytest.raises(ValueError, match=f"^{tmp_path / 't'}: member [^;]* outside the folder; nothing was unpacked$"):
        unpack(tmp_path / "t", tmp_path / "out")


def test_a_file_may_grow_to_64_megabytes_or_to_200_times_its_size(tmp_path):
    for size, most in ((0, 64 << 20), (335_544, 64 << 20), (335_545, 67_109_000), (1 << 20, 200 << 20)):
        path = tmp_path / "a"
        path.touch()
        os.truncate(path, size)
        assert growth.most_bytes(path) == most
