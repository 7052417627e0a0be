"""Stores without a network: which files are found, how they are called, what is copied, and whom a client follows."""

import asyncio
import io
import tempfile
import warnings
from contextlib import closing
from types import SimpleNamespace

import pytest
from pyarrow import fs

from paceline.datasets import Trace
from paceline.training import stores
from paceline.training.stores import Stored, files, read


def trace(name):
    return Trace([[8, 8]] * 3, [[1, 2]] * 3, meta={"job": name})


@pytest.fixture
def folder(tmp_path):
    """Files at some depths, of which some are hidden, below a folder that is hidden itself."""
    place = tmp_path / ".store"
    for name in ("b.parquet", "a/c.parquet", "a/.d.parquet", ".e/f.parquet", "a/g/.h/i.parquet", "a b@c?.parquet"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        trace(name).save(place / name)
    return place


def test_every_file_below_a_folder_is_found_but_hidden_ones(folder):
    found = files(f"file://{folder}")
    names = ["a b@c?.parquet", "a/c.parquet", "b.parquet"]
    assert [one.path for one in found] == [f"{folder}/{name}" for name in names]
    assert [one.address for one in found] == [
        f"file://{folder}/{name}".replace("file:///", "file://") for name in names
    ]
    assert {one.given for one in found} == {f"file://{folder}"}
    assert [one.name for one in read(found[0])] == ["a b@c?.parquet"]
    (hidden,) = files(f"file://{folder}/.e/f.parquet")
    assert hidden.path == f"{folder}/.e/f.parquet", "that was asked for"
    with pytest.raises(FileNotFoundError, match=f"^there is nothing at file://{folder}/gone$"):
        files(f"file://{folder}/gone")


@pytest.mark.parametrize(
    ("address", "path", "shown"),
    [
        ("s3://bucket/jobs", "bucket/jobs/a.csv", "s3://bucket/jobs/a.csv"),
        ("s3://key:HUSHHUSH@bucket/jobs", "bucket/jobs/a@b?.csv", "s3://bucket/jobs/a@b?.csv"),
        ("file:///jobs", "/jobs/a.csv", "file://jobs/a.csv"),
        ("memory://user:HUSHHUSH@bucket", "/user:HUSHHUSH@bucket/a.csv", "memory://***@bucket/a.csv"),
        ("https://host/x?sig=HUSHHUSH", "https://host/x?sig=HUSHHUSH", "https://host/x?***"),
        ("https://host/jobs", "https://host/jobs/a b?sig=HUSHHUSH", "https://host/jobs/a b?***"),
    ],
)
def test_a_file_is_called_by_its_place_without_what_may_be_a_secret(address, path, shown):
    assert stores._shown_path(address, path) == shown


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("bucket/a%20b?c.csv", "a%20b?c.csv"),
        ("https://host/in/a%20b.csv?sig=x#y", "a b.csv"),
        ("https://host", "file"),
        ("https://host/a/..", "file"),
        ("https://host/a%2Fb.csv", "b.csv"),
        ("", "file"),
    ],
)
def test_the_name_of_a_file_is_the_last_part_of_its_path(path, name):
    assert Stored("", None, path, "").name == name


def test_what_a_file_holds_is_not_in_its_representation():
    assert repr(Stored("shown", "HUSH", "HUSH", "HUSH")) == "Stored(address='shown')"


# -- copies --------------------------------------------------------------------------------------------------------


class Blocks(io.BytesIO):
    """A stream that notes how much is asked for at once."""

    def __init__(self, content, asked):
        super().__init__(content)
        self.asked = asked

    def read(self, size=-1):
        self.asked.append(size)
        return super().read(size)


def stored(content, name="in/t.csv", asked=None):
    system = SimpleNamespace(open_input_stream=lambda path: Blocks(content, [] if asked is None else asked))
    return Stored(f"s3://{name}", system, name, f"s3://{name}")


CSV = b"worker,iteration,samples,seconds\na,0,8,1\na,1,8,x\n"


def test_a_file_is_read_from_a_copy_of_its_name_that_is_gone_afterwards_and_errors_name_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen, asked = [], []

    def iter_traces(copy):
        seen.append((copy.name, copy.read_bytes()))
        yield "trace"
        raise ValueError(f"{copy}: wrong, {copy}")

    monkeypatch.setattr(stores, "iter_traces", iter_traces)
    traces = read(stored(CSV, asked=asked))
    with closing(traces):
        assert next(traces) == "trace"
        assert seen == [("t.csv", CSV)]
        with pytest.raises(ValueError, match=r"^s3://in/t\.csv: wrong, s3://in/t\.csv$"):
            next(traces)
    assert set(asked) == {1 << 20}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("paceline")]


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_copy_has_as_many_bytes_as_are_allowed(tmp_path, monkeypatch, spare):
    monkeypatch.setattr(stores, "BLOCK_BYTES", 7)
    monkeypatch.setenv("PACELINE_STORE_BYTES", str(len(CSV) + spare))
    copy = tmp_path / "copy"
    if spare < 0:
        with pytest.raises(
            ValueError, match=rf"^s3://in/t\.csv: is larger than {len(CSV) - 1} bytes, and was not kept"
        ):
            stores._copy(stored(CSV), copy)
    else:
        stores._copy(stored(CSV), copy)
        assert copy.read_bytes() == CSV


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many"])
def test_what_is_no_number_of_bytes_is_refused(monkeypatch, text):
    monkeypatch.setenv("PACELINE_STORE_BYTES", text)
    with pytest.raises(ValueError, match=rf"^PACELINE_STORE_BYTES must be a whole number of bytes, got '{text}'$"):
        stores._most_bytes()


# -- systems -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss", "zip", "https", "hf"])
def test_pyarrow_opens_its_own_stores_and_fsspec_all_others(monkeypatch, protocol):
    import pyarrow as pa

    asked = []
    monkeypatch.setattr(stores, "_fsspec", lambda address: asked.append(("fsspec", address)) or "fsspec")
    own = SimpleNamespace(from_uri=lambda address: asked.append(("pyarrow", address)) or ("system", "path"))
    monkeypatch.setattr(fs, "FileSystem", own)
    address = f"{protocol}://bucket/x"
    found = stores._system(address)
    by = "pyarrow" if protocol in stores.NATIVE else "fsspec"
    assert asked == [(by, address)]
    assert found == (("system", "path") if by == "pyarrow" else "fsspec")
    assert (protocol in stores.NATIVE) == (protocol not in ("zip", "https", "hf"))

    def lacking(address):
        raise pa.ArrowNotImplementedError("built without it")

    own.from_uri = lacking
    assert stores._system(address) == "fsspec"


@pytest.mark.parametrize(
    ("address", "watched"),
    [
        ("https://host/x", ["https"]),
        ("http://localhost/x", ["http"]),
        ("zip://x.csv::https://host/x.zip", ["https"]),
        ("memory://x", []),
    ],
)
def test_a_client_of_the_web_is_ours(monkeypatch, address, watched):
    fsspec = pytest.importorskip("fsspec")
    asked, needed = [], []
    monkeypatch.setattr(stores, "require", lambda library, **why: needed.append((library, why)))
    system = fsspec.filesystem("memory")
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *given, **how: asked.append((given, how)) or (system, "in"))
    found, path = stores._fsspec(address)
    assert asked == [((address,), {web: {"get_client": stores._client} for web in watched})]
    assert needed == [("fsspec", {"needed_by": f"reading {address}", "extra": "remote"})]
    assert isinstance(found, fs.PyFileSystem)
    assert (found.handler.fs, path) == (system, "in")


def test_our_client_of_the_web_is_told_where_it_is_sent_on(monkeypatch):
    aiohttp = pytest.importorskip("aiohttp")
    monkeypatch.setattr(aiohttp, "ClientSession", lambda **options: options)
    made = asyncio.run(stores._client(loop=3))
    (watching,) = made.pop("trace_configs")
    assert made == {"loop": 3}
    assert list(watching.on_request_redirect) == [stores._sent_on]


def sent_on(begin, location, header="Location"):
    yarl = pytest.importorskip("yarl")
    response = SimpleNamespace(headers={header: location} if location is not None else {})
    asyncio.run(stores._sent_on(None, None, SimpleNamespace(url=yarl.URL(begin), response=response)))


@pytest.mark.parametrize(
    ("begin", "location"),
    [
        ("https://host/x", "http://host/y"),
        ("https://host/x", "http://localhost/y"),
        ("http://localhost/x", "http://host/y"),
        ("https://host/x?sig=HUSHHUSH", "ftp://host/y?sig=HUSHHUSH"),
    ],
)
@pytest.mark.parametrize("header", ["Location", "URI"])
def test_a_redirect_to_what_others_can_read_is_refused(begin, location, header):
    with pytest.raises(ValueError, match=r"^http.* redirects to .*, which others on the way can read$") as told:
        sent_on(begin, location, header)
    assert "HUSH" not in str(told.value)


@pytest.mark.parametrize(
    ("begin", "location", "other"),
    [
        ("https://host/x", "https://host/y", None),
        ("https://host/x", "/y", None),
        ("https://host/x", None, None),
        ("http://localhost/x", "http://localhost/y", None),
        ("http://localhost/x", "https://localhost/y", None),
        ("http://localhost/x", "http://127.0.0.1/y", "127.0.0.1"),
        ("https://host/x?sig=HUSHHUSH", "https://mirror/y", "mirror"),
    ],
)
def test_a_redirect_to_another_host_is_said(begin, location, other):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sent_on(begin, location)
    place = begin.partition("?")[0] + ("?***" if "?" in begin else "")
    assert [str(one.message) for one in told] == ([f"{place} is answered by another host, {other}"] if other else [])


def test_a_hidden_part_counts_only_below_the_folder():
    assert not stores._hidden(".a/b/c.csv", ".a/b")
    assert stores._hidden(".a/b/.c.csv", ".a/b")
    assert stores._hidden("a/.b/c.csv", "a")
    assert not stores._hidden("a/b/c.csv", "a")
