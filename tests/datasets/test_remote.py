"""Fetching, against a server on loopback with made files: nothing unasked, nothing unverified, nothing twice."""

import hashlib
import http.server
import re
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from paceline.datasets import remote
from paceline.datasets.remote_sets import REMOTE_SETS, RemoteFile, RemoteSet

pytest.importorskip("pooch")

CONTENT = bytes(range(256)) * 2000


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT for any path, ranges too; breaks off after ``limit`` bytes if there is one."""

    limit = None
    ranges = True
    content = CONTENT
    asked: ClassVar[list] = []

    def do_GET(self):
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        if begin >= len(self.content) or "nothing" in self.path:
            self.send_error(404 if "nothing" in self.path else 416)
            return
        body = self.content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.limit])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    handler = type("OneServer", (Server,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        handler.address = f"http://127.0.0.1:{running.server_port}/"
        yield handler
        running.shutdown()
        thread.join()


@pytest.fixture
def made(server, monkeypatch):
    digest = hashlib.sha256(CONTENT).hexdigest()
    files = (RemoteFile("a.bin", "a.bin", digest), RemoteFile("b.bin", "", digest), RemoteFile("c.bin", "c.bin", ""))
    one = RemoteSet(name="made", about="", address=server.address, licence="", format="nab", selection="", files=files)
    monkeypatch.setitem(REMOTE_SETS, "made", one)
    return digest


def test_a_file_is_fetched_once_and_then_kept(server, made, tmp_path):
    (path,) = remote.fetch("made", "a.bin", cache=tmp_path)
    assert path.read_bytes() == CONTENT
    assert remote.fetch("made", "a.bin", cache=tmp_path) == [path]
    assert server.asked == [None]
    assert [file.name for file in path.parent.iterdir()] == ["a.bin"]


def test_a_download_that_broke_off_goes_on_where_it_stopped(server, made, tmp_path):
    server.limit = 100_000
    with pytest.raises(OSError):  # noqa: PT011 - the message is that of requests
        remote.fetch("made", "a.bin", cache=tmp_path)
    received = sum(file.stat().st_size for file in (tmp_path / "made").iterdir())
    assert 0 < received <= 100_000
    server.limit = None
    (path,) = remote.fetch("made", "a.bin", cache=tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={received}-"]


def test_a_server_without_ranges_is_asked_for_the_whole_again(server, made, tmp_path):
    server.limit = 100_000
    with pytest.raises(OSError):  # noqa: PT011
        remote.fetch("made", "a.bin", cache=tmp_path)
    server.limit, server.ranges = None, False
    (path,) = remote.fetch("made", "a.bin", cache=tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_file_with_another_hash_is_refused_and_not_kept(server, made, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(ValueError, match="has unexpected content and was not kept"):
        remote.fetch("made", "a.bin", cache=tmp_path)
    assert not any((tmp_path / "made").iterdir())


def test_a_cached_file_that_was_changed_is_fetched_again(server, made, tmp_path):
    (path,) = remote.fetch("made", "a.bin", cache=tmp_path)
    path.write_bytes(b"changed")
    assert remote.fetch("made", "a.bin", cache=tmp_path)[0].read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_removed(server, made, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / f".a.bin.{made[:16]}.part").write_bytes(CONTENT + b"more")
    with pytest.raises(OSError, match="fetch again"):
        remote.fetch("made", "a.bin", cache=tmp_path)
    assert remote.fetch("made", "a.bin", cache=tmp_path)[0].read_bytes() == CONTENT


def test_what_is_not_listed_must_be_given(server, made, tmp_path):
    with pytest.raises(ValueError, match="give it as url; its sha256 is listed"):
        remote.fetch("made", "b.bin", cache=tmp_path)
    with pytest.raises(ValueError, match="give a sha256 that you trust"):
        remote.fetch("made", "c.bin", cache=tmp_path)
    assert server.asked == []
    remote.fetch("made", "b.bin", url=f"{server.address}elsewhere", cache=tmp_path)
    remote.fetch("made", "c.bin", sha256=made, cache=tmp_path)
    with pytest.raises(ValueError, match="which is not the given one"):
        remote.fetch("made", "a.bin", sha256="0" * 64, cache=tmp_path)


@pytest.mark.parametrize("url", ["http://example.org/x", "file:///etc/passwd", "ftp://example.org/x"])
def test_only_https_is_fetched_from_elsewhere(made, tmp_path, url):
    with pytest.raises(ValueError, match="must begin with https"):
        remote.fetch("made", "a.bin", url=url, cache=tmp_path)


def test_mistakes_are_named(server, made, tmp_path):
    with pytest.raises(ValueError, match="there is no remote set 'nope'"):
        remote.fetch("nope")
    with pytest.raises(ValueError, match="has no file 'z'"):
        remote.fetch("made", "z")
    with pytest.raises(ValueError, match="those of one file"):
        remote.fetch("made", sha256=made)
    with pytest.raises(OSError, match="404"):
        remote.fetch("made", "a.bin", url=f"{server.address}nothing", cache=tmp_path)


def test_every_listed_set_stands_at_a_fixed_commit_with_true_hashes_or_says_that_they_are_not_known():
    for one in REMOTE_SETS.values():
        assert re.match(r"https://raw\.githubusercontent\.com/[\w.-]+/[\w.-]+/[0-9a-f]{40}/", one.address)
        assert one.address.endswith("/")
        assert one.licence
        assert len({file.name for file in one.files}) == len(one.files)
        for file in one.files:
            assert re.fullmatch(r"([0-9a-f]{64})?", file.sha256)
            assert file.sha256 or "sha256 is not known" in one.selection
            assert file.path or "paths in the source were not kept" in one.selection
            assert Path(file.name).name == file.name


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize("beyond", [0, 1])
def test_a_download_may_be_as_large_as_said_and_not_a_byte_larger(server, tmp_path, monkeypatch, as_file, beyond):
    assert (remote.MOST_BYTES, remote.SECONDS) == (4 << 30, 30.0)
    monkeypatch.setattr(remote, "MOST_BYTES", len(CONTENT) - beyond)
    part, whole = tmp_path / "part", tmp_path / "whole"
    with whole.open("wb") as file:
        target = file if as_file else str(whole)
        if beyond:
            with pytest.raises(ValueError, match=f"is larger than {len(CONTENT) - 1} bytes"):
                remote.Resuming(part)(f"{server.address}a.bin", target, None)
            return
        remote.Resuming(part)(f"{server.address}a.bin", target, None)
    assert whole.read_bytes() == CONTENT
    assert not part.exists()
