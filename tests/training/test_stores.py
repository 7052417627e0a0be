"""Stores on the web, against servers on loopback: how much is read, from whom, and what stays behind."""

import http.server
import tempfile
import threading
from contextlib import contextmanager

import pytest

from paceline.datasets import Trace
from paceline.training import Source, stores
from paceline.training.stores import files

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

SIGNED = "?X-Amz-Signature=HUSHHUSH"


class Answers(http.server.BaseHTTPRequestHandler):
    """Serves one content, or rows without an end; sends on to another address, or refuses."""

    protocol_version = "HTTP/1.1"
    content = b""
    sends_to = ""
    refuses = endless = False
    rows = 0

    def do_HEAD(self):
        self.head()

    def do_GET(self):
        self.head()
        if self.sends_to or self.refuses:
            return
        if not self.endless:
            self.wfile.write(self.content)
            return
        row = b"0,a,8,1.0\n" * 6554
        try:
            while True:
                self.wfile.write(f"{len(row):x}\r\n".encode() + row + b"\r\n")
                type(self).rows += 6554
        except OSError:  # whoever asked has enough
            self.close_connection = True

    def head(self):
        self.send_response(403 if self.refuses else 302 if self.sends_to else 200)
        if self.sends_to:
            self.send_header("Location", self.sends_to)
        if self.sends_to or self.refuses:
            self.send_header("Content-Length", "0")
        elif self.endless:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def log_message(self, *arguments):
        pass


@contextmanager
def serving(**how):
    handler = type("Some", (Answers,), how)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        handler.port = server.server_port
        try:
            yield handler
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def parquet(tmp_path):
    return Trace([[8, 8]] * 3, [[1, 2]] * 3, meta={"job": "served"}).save(tmp_path / "served.parquet").read_bytes()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_file_is_read_from_a_signed_address_which_nothing_that_is_kept_shows(parquet):
    with serving(content=parquet) as server:
        source = Source(f"http://127.0.0.1:{server.port}/served.parquet{SIGNED}")
        (trace,) = source
    (fact,) = source.facts
    assert fact.file == trace.meta["file"] == f"http://127.0.0.1:{server.port}/served.parquet?***"
    assert "HUSH" not in f"{source.facts}{trace.meta}"


def test_a_name_is_that_of_the_file_without_its_signature():
    csv = b"iteration,worker,samples,seconds\n0,a,8,1.0\n1,a,8,2.0\n"
    with serving(content=csv) as server:
        (trace,) = Source(f"http://127.0.0.1:{server.port}/my%20job.csv{SIGNED}")
    assert trace.name == "my job"
    assert "HUSH" not in str(dict(trace.meta))


@pytest.mark.slow
def test_an_endless_answer_ends_in_an_error_and_leaves_no_copy(place, monkeypatch):
    monkeypatch.setenv("PACELINE_STORE_BYTES", "1000000")
    with serving(endless=True) as server:
        address = f"http://127.0.0.1:{server.port}/jobs.csv{SIGNED}"
        with pytest.raises(
            ValueError, match=r"jobs.csv\?\*\*\*: is larger than 1000000 bytes, .* PACELINE_STORE_BYTES"
        ):
            list(Source(address, strict=True))
        with pytest.raises(ValueError, match=r"got none; http.* is larger than 1000000 bytes") as told:
            list(Source(address))
    assert "HUSH" not in str(told.value)
    assert server.rows < 6_000_000  # what lay in buffers, and no more
    assert not list(place.glob("paceline-*"))


def test_the_bound_can_be_raised_and_a_wrong_one_is_refused(parquet, monkeypatch):
    with serving(content=parquet) as server:
        address = f"http://127.0.0.1:{server.port}/served.parquet"
        monkeypatch.setenv("PACELINE_STORE_BYTES", str(len(parquet) - 1))
        with pytest.raises(ValueError, match="is larger than"):
            list(Source(address, strict=True))
        monkeypatch.setenv("PACELINE_STORE_BYTES", str(len(parquet)))
        assert [trace.name for trace in Source(address)] == ["served"]
        monkeypatch.setenv("PACELINE_STORE_BYTES", "1 GB")
        with pytest.raises(ValueError, match="must be a whole number of bytes, got '1 GB'"):
            list(Source(address, strict=True))


@pytest.mark.parametrize("address", ["http://{}host/x.csv", "ftp://{}host/x.csv", "zip://x.csv::http://{}host/x.zip"])
def test_what_others_on_the_way_could_read_is_refused_before_anything_is_sent(address):
    with pytest.raises(ValueError, match=r"others on the way can read and change what .* use https") as told:
        files(address.format("HUSHHUSH@"))
    assert "HUSH" not in str(told.value)


def test_an_answer_of_another_host_is_said(parquet):
    with (
        serving(content=parquet) as other,
        serving(sends_to=f"http://localhost:{other.port}/x{SIGNED}") as server,
        pytest.warns(UserWarning, match="is answered by another host, localhost") as told,
    ):
        (trace,) = Source(f"http://127.0.0.1:{server.port}/served.parquet{SIGNED}")
    assert trace.name == "served"
    assert not [one for one in told if "HUSH" in str(one.message)]


def test_a_redirect_to_what_others_can_read_is_refused_before_it_is_followed():
    with serving(sends_to=f"http://host.invalid/x{SIGNED}") as server:
        address = f"http://127.0.0.1:{server.port}/served.parquet{SIGNED}"
        with pytest.raises(
            OSError, match=r"redirects to http://host.invalid/x\?\*\*\*, which others .* can read"
        ) as told:
            files(address)
    assert "HUSH" not in str(told.value)


def test_a_refusal_is_told_with_its_status_and_without_the_address(parquet):
    with serving(refuses=True) as server, pytest.raises(FileNotFoundError, match="403") as told:
        files(f"http://TOKENTOKEN@127.0.0.1:{server.port}/served.parquet{SIGNED}")
    assert not [part for part in ("HUSH", "TOKEN") if part in str(told.value)]


def test_a_gibibyte_is_read_of_a_file_unless_more_is_allowed(monkeypatch):
    monkeypatch.delenv("PACELINE_STORE_BYTES", raising=False)
    assert stores._most_bytes() == 1024**3
    monkeypatch.setenv("PACELINE_STORE_BYTES", "7")
    assert stores._most_bytes() == 7
