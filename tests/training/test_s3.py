"""Traces in a store that speaks the protocol of S3: moto's server, in a process of its own (make test-s3)."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from fit_cases import folder_of, learnt, networks
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.training import Registry, Source, fit

SERVER = os.environ.get("PACELINE_S3_SERVER") or shutil.which("moto_server")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(SERVER is None, reason="needs moto's server, in an environment of its own: make test-s3"),
]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(port, server):
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as output:
        server = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output)
    try:
        assert answers(port, server), log.read_text()
        yield port
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def jobs(port, tmp_path, monkeypatch):
    """A folder of this machine whose files also lie below s3://bucket/jobs, with a broken one among them."""
    from pyarrow.fs import S3FileSystem, copy_files

    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    folder = folder_of(tmp_path / "jobs", 3)
    first, *_ = sorted(folder.iterdir())
    first.rename(folder / "a b+c=d & ü.parquet")  # characters that an address must not hold as they are
    system = S3FileSystem(endpoint_override=f"http://127.0.0.1:{port}", allow_bucket_creation=True)
    system.create_dir("bucket")
    copy_files(str(folder), "bucket/jobs", destination_filesystem=system)
    with system.open_output_stream("bucket/jobs/broken.parquet") as file:
        file.write(b"PAR1 and then nothing")
    return folder


def test_a_folder_in_the_store_is_fitted_as_one_on_this_machine(jobs):
    with pytest.warns(
        UserWarning, match=r"1 files were left out of the fit: s3://bucket/jobs/broken.parquet: "
    ) as told:
        from_store = fit(networks()[0], "s3://bucket/jobs")
    assert str(Path("/tmp")) not in str(told[0].message)
    assert learnt(from_store) == learnt(fit(networks()[0], jobs))


def test_each_file_is_read_by_its_own_name_whatever_characters_it_holds(jobs):
    source = Source("s3://bucket/jobs")
    assert sorted(trace.name for trace in source) == ["job0", "job1", "job2"]
    assert source.facts[0].file == "s3://bucket/jobs/a b+c=d & ü.parquet"
    assert [trace.name for trace in source] == [fact.name for fact in source.facts]  # read again, in the same order
    assert [trace.name for trace in Source("s3://bucket/jobs/a%20b%2Bc%3Dd%20%26%20%C3%BC.parquet")] == ["job0"]


def test_an_address_may_hold_key_secret_and_endpoint_and_no_list_or_message_shows_them(jobs, port, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    options = f"endpoint_override=127.0.0.1%3A{port}&scheme=http&region=us-east-1"
    source = Source(f"s3://testing:hush@bucket/jobs?{options}")
    assert len(list(source)) == 3
    assert "hush" not in f"{source.facts}{source.left_out}"
    with pytest.raises(FileNotFoundError, match=r"there is nothing at s3://\*\*\*@bucket/other") as told:
        Source(f"s3://testing:hush@bucket/other?{options}")
    assert "hush" not in str(told.value)


def test_the_command_fits_from_a_store_into_a_registry_without_its_secret(jobs, tmp_path, monkeypatch):
    address = "s3://testing:hush@bucket/jobs"
    arguments = ["fit", "ewma", "-f", address, "--registry", str(tmp_path / "models"), "--name", "monday"]
    monkeypatch.setattr("sys.argv", ["paceline", *arguments])
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    entry = Registry(tmp_path / "models").entry("monday")
    assert len(entry.data) == 3
    assert all(fact.file.startswith("s3://bucket/jobs/") for fact in entry.data)
    written = [file.read_bytes() for file in (tmp_path / "models").rglob("*") if file.is_file()]
    assert written
    assert not any(b"hush" in content for content in written)
