"""Unpacking: what is safe comes out whole, what is not leaves nothing behind."""

import io
import tarfile
import zipfile

import pytest

from paceline.datasets import archives, growth
from paceline.datasets.archives import unpack


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def tarred(path, *infos):
    with tarfile.open(path, "w:gz") as file:
        for name, content, kind in infos:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
            file.addfile(info, io.BytesIO(content))
    return path


def test_zip_and_tar_come_out_as_they_went_in(tmp_path):
    one = unpack(zipped(tmp_path / "a.zip", {"a.csv": b"1", "sub/b.csv": b"22"}), tmp_path / "a")
    two = unpack(
        tarred(tmp_path / "b.tgz", ("a.csv", b"1", tarfile.REGTYPE), ("sub/b.csv", b"22", tarfile.REGTYPE)),
        tmp_path / "b",
    )
    for files in (one, two):
        assert [(file.name, file.read_bytes()) for file in files] == [("a.csv", b"1"), ("b.csv", b"22")]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp/x", "..\\x", "C:/x"])
def test_paths_that_lead_outside_are_refused(tmp_path, name):
    for number, archive in enumerate(
        (
            zipped(tmp_path / "a.zip", {"good": b"1", name: b"2"}),
            tarred(tmp_path / "b.tgz", (name, b"2", tarfile.REGTYPE)),
        )
    ):
        with pytest.raises(ValueError, match="outside the folder; nothing was unpacked"):
            unpack(archive, tmp_path / str(number))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.zip", "b.tgz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with pytest.raises(ValueError, match="is a link or a device"):
        unpack(tarred(tmp_path / "b.tgz", ("x", b"", kind)), tmp_path / "b")


def test_links_in_zip_archives_are_refused(tmp_path):
    info = zipfile.ZipInfo("x")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match="is a link or a device"):
        unpack(tmp_path / "a.zip", tmp_path / "a")


@pytest.mark.slow
def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "FREE_BYTES", 1 << 16)
    zeros = b"\0" * 5_000_000
    for archive in (
        zipped(tmp_path / "a.zip", {"x": zeros}),
        tarred(tmp_path / "b.tgz", ("x", zeros, tarfile.REGTYPE)),
        zipped(tmp_path / "c.zip", {f"{k}": zeros[:200_000] for k in range(40)}),
    ):
        with pytest.raises(ValueError, match="times its size; nothing was unpacked"):
            unpack(archive, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    with pytest.raises(ValueError, match="more than 3 members"):
        unpack(zipped(tmp_path / "a.zip", {str(k): b"" for k in range(4)}), tmp_path / "a")


def test_cut_and_other_files_and_repeated_members_are_refused(tmp_path):
    whole = zipped(tmp_path / "a.zip", {"x": bytes(range(256)) * 40}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:-30])
    (tmp_path / "cut.tgz").write_bytes(tarred(tmp_path / "b.tgz", ("x", whole, tarfile.REGTYPE)).read_bytes()[:60])
    (tmp_path / "text.txt").write_text("no archive")
    for name in ("cut.zip", "cut.tgz", "text.txt"):
        with pytest.raises(ValueError, match=r"neither a zip nor a tar|truncated, damaged"):
            unpack(tmp_path / name, tmp_path / "out")
    twice = tarred(tmp_path / "twice.tgz", ("x", b"1", tarfile.REGTYPE), ("x", b"2", tarfile.REGTYPE))
    with pytest.raises(ValueError, match="nothing was unpacked"):
        unpack(twice, tmp_path / "out")


def test_a_folder_that_is_there_is_not_written_into(tmp_path):
    with pytest.raises(FileExistsError, match="choose a new folder"):
        unpack(zipped(tmp_path / "a.zip", {"x": b"1"}), tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no archive"):
        unpack(tmp_path / "none.zip", tmp_path / "out")
