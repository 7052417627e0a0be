"""What a download asks of a server and of pooch, and what it keeps, without either."""

import io
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.datasets import remote
from paceline.datasets.remote_sets import REMOTE_SETS, RemoteFile, RemoteSet

DIGEST = "0123456789abcdef" * 4


# -- what is asked of a server -------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """A server that answers as it is told, and what it was asked."""
    requests = pytest.importorskip("requests")
    told = SimpleNamespace(asked=[], status=200, headers={}, chunks=[b"more"], sizes=[])

    @contextmanager
    def get(url, **how):
        told.asked.append((url, how))

        def iter_content(size):
            told.sizes.append(size)
            return iter(told.chunks)

        def raise_for_status():
            if told.status >= 400:
                raise requests.HTTPError(f"{told.status}")

        yield SimpleNamespace(
            status_code=told.status, headers=told.headers, iter_content=iter_content, raise_for_status=raise_for_status
        )

    monkeypatch.setattr(requests, "get", get)
    return told


def plainly(**headers):
    return {"headers": {"Accept-Encoding": "identity", **headers}, "stream": True, "timeout": 30.0}


@pytest.mark.parametrize(
    ("have", "answers", "content"),
    [
        (None, {}, b"more"),
        (b"", {"Content-Range": "bytes 0-3/4"}, b"more"),
        (b"some", {"Content-Range": "bytes 4-7/8"}, b"somemore"),
        (b"some", {"Content-Range": "bytes 40-43/44"}, b"more"),
        (b"some", {"Content-Range": "bytes 0-3/4"}, b"more"),
        (b"some", {}, b"more"),
    ],
)
def test_a_download_goes_on_where_the_answer_begins_and_else_begins_anew(server, tmp_path, have, answers, content):
    part = tmp_path / "part"
    if have is not None:
        part.write_bytes(have)
    server.headers = answers
    remote.Resuming(part)("https://host/x", file := io.BytesIO(), None)
    assert (file.getvalue(), part.exists()) == (content, False)
    assert server.asked == [("https://host/x", plainly(**({"Range": "bytes=4-"} if have else {})))]
    assert server.sizes == [1 << 16]


def test_what_was_received_is_moved_to_a_path_and_kept_after_a_refusal(server, tmp_path):
    part = tmp_path / "part"
    for target in ("a", "b"):
        where = tmp_path / target
        remote.Resuming(part)("https://host/x", str(where) if target == "a" else where, None)
        assert (where.read_bytes(), part.exists()) == (b"more", False)
    part.write_bytes(b"some")
    server.status = 503
    with pytest.raises(OSError, match="503"):
        remote.Resuming(part)("https://host/x", str(tmp_path / "c"), None)
    assert part.read_bytes() == b"some"
    server.status = 416
    with pytest.raises(OSError, match=r"^https://host/x: the part received before does not match; it was removed: fet"):
        remote.Resuming(part)("https://host/x", str(tmp_path / "c"), None)
    assert not part.exists()
    assert not (tmp_path / "c").exists()


# -- what is asked of pooch ----------------------------------------------------------------------------------------


@pytest.fixture
def sets(monkeypatch, tmp_path):
    """Made sets of one file and of two, and a pooch that only notes what it is asked."""
    pooch = pytest.importorskip("pooch")
    files = [RemoteFile(name, f"in/{name}", DIGEST) for name in ("a.bin", "b.bin")]
    for name, held in (("one", files[:1]), ("two", files)):
        made = RemoteSet(
            name=name, about="", address="https://host/", licence="", format="nab", selection="", files=tuple(held)
        )
        monkeypatch.setitem(REMOTE_SETS, name, made)
    asked = []

    def retrieve(address, *, known_hash, fname, path, downloader):
        asked.append((address, known_hash, fname, Path(path), downloader.part))
        return str(Path(path) / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setattr(pooch, "os_cache", lambda name: str(tmp_path / "cache" / name))
    return asked


def asked_of(folder, name, address):
    return (address, f"sha256:{DIGEST}", name, folder, folder / f".{name}.{DIGEST[:16]}.part")


def test_all_files_of_a_set_go_into_its_folder_of_the_users_cache(sets, tmp_path):
    folder = tmp_path / "cache" / "paceline" / "two"
    assert remote.fetch("two") == [folder / "a.bin", folder / "b.bin"]
    assert sets == [asked_of(folder, name, f"https://host/in/{name}") for name in ("a.bin", "b.bin")]
    assert folder.is_dir()
    assert remote.fetch("two", "b.bin", cache=str(tmp_path / "own")) == [tmp_path / "own" / "two" / "b.bin"]
    assert len(sets) == 3


def test_the_address_and_digest_of_the_only_file_need_no_name(sets, tmp_path):
    remote.fetch("one", url="https://mirror/x", sha256=DIGEST, cache=tmp_path)
    remote.fetch("two", "a.bin", url="https://mirror/x", cache=tmp_path)
    assert sets == [asked_of(tmp_path / name, "a.bin", "https://mirror/x") for name in ("one", "two")]
    for given in ({"url": "https://mirror/x"}, {"sha256": DIGEST}):
        with pytest.raises(ValueError, match=r"those of one file: name it, one of \['a.bin', 'b.bin'\]$"):
            remote.fetch("two", **given, cache=tmp_path)


@pytest.mark.parametrize("sha256", [DIGEST[1:], f"{DIGEST}0", DIGEST.upper(), ""])
def test_a_digest_is_64_hexadecimal_digits(sets, sha256):
    with pytest.raises(ValueError, match=f"^sha256 must be 64 hexadecimal digits in small letters, got '{sha256}'$"):
        remote.fetch("one", sha256=sha256)
    assert sets == []


def test_pooch_is_asked_for_only_once_all_else_is_right(sets, monkeypatch):
    needed = []

    def refused(library, **why):
        needed.append((library, why))
        raise ImportError("none")

    monkeypatch.setattr(remote, "require", refused)
    with pytest.raises(ValueError, match="must begin with https://, got 'ftp://host/x'"):
        remote.fetch("one", url="ftp://host/x")
    assert needed == []
    with pytest.raises(ImportError, match="none"):
        remote.fetch("one")
    assert needed == [("pooch", {"needed_by": "fetch", "extra": "remote"})]


def test_content_that_is_not_the_listed_one_is_named_by_its_address_without_a_secret(sets, monkeypatch):
    import pooch

    def retrieve(address, **how):
        raise ValueError(f"SHA256 hash of {address} is another")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(ValueError, match=r"^https://\*\*\*@host/x: has unexpected content and was not kept: SHA256 .*"):
        remote.fetch("one", url="https://HUSHHUSH@host/x")
