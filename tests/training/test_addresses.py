"""Secrets in addresses of stores and servers: no error, list, card or log shows one, whatever it is made of."""

import json
import logging
import string
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from paceline.training.export import to_mlflow

from paceline._address import hiding, is_readable, shown, without_secrets
from paceline.cli import main as cli
from paceline.datasets import Trace, fetch
from paceline.predictors import EWMA
from paceline.training import Registry, Source, fit, load_model, save_model
from paceline.training.stores import files

ALPHABET = string.ascii_uppercase + string.digits
ONE = Trace([[8, 8]], [[1, 2]])
SECRETS = st.text(ALPHABET + "/@:?#=%+,'\"\\ *-_~.", min_size=8, max_size=40).filter(
    lambda secret: sum(one in ALPHABET for one in secret) >= 8  # what may be visible is in small letters
)
SHAPES = st.sampled_from(
    [
        "s3://user:{}@bucket/jobs?bogus=1",
        "s3://{}@bucket/jobs?bogus=1",
        "s3://{}:{}@bucket/a b",
        "s3://bucket/jobs?bogus={}",
        "nothing://{}@host/jobs",
        "nothing://{}:{}@host/jobs?token={}",
        "http://{}@host/jobs.csv",
        "ftp://user:{}@host/jobs.csv",
        "https://{}@127.0.0.1:1/jobs.csv",
        "https://127.0.0.1:1/jobs.csv?X-Amz-Signature={}",
        "https://127.0.0.1:1/jobs.csv?X-Goog-Credential={}&X-Goog-Signature={}",
        "https://127.0.0.1:1/jobs.csv?sv=2026&sig={}",
        "memory://{}@bucket/jobs",
        "simplecache::nothing://{}:{}@bucket/jobs",
    ]
)


def parts_of(secret, text):
    """Return the parts of a secret that a text shows: all of it, or four letters or digits in a row."""
    fours = {secret[place : place + 4] for place in range(len(secret) - 3)}
    return [part for part in {secret} | {four for four in fours if four.isalnum()} if part in text]


def told(call, *arguments):
    """Return all that a call tells: its error with its cause, or what it returns."""
    try:
        return repr(call(*arguments))
    except (ValueError, OSError, ImportError, TypeError) as error:
        # Without the lines of this file.
        return "".join(traceback.TracebackException.from_exception(error, limit=0).format())


def command(address, monkey):
    """Return what the command says that is told to fit to this address."""
    lines = []
    monkey.setattr(sys, "argv", ["paceline", "fit", "ewma", "--fit-on", address, "--start", address])
    monkey.setattr(cli.err, "print", lambda *texts, **_: lines.extend(texts))
    with pytest.raises(SystemExit):
        cli.main()
    return " ".join(map(str, lines))


@pytest.mark.slow
@given(SHAPES, SECRETS)
@settings(max_examples=150)
@example("s3://user:{}@bucket/jobs?bogus=1", "ABC/DEFGH@IJKL")
@example("https://{}@127.0.0.1:1/jobs.csv", "TOKENTOKEN")
@example("https://127.0.0.1:1/jobs.csv?X-Amz-Signature={}", "ABCDEF%2F0123@4567")
def test_no_part_of_a_secret_is_in_anything_that_an_address_leads_to(shape, secret):
    address = shape.format(*[secret] * shape.count("{}"))
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    texts = {
        "shown": shown(address),
        "files": told(files, address),
        "source": told(Source, address),
        "path": told(Source, Path(address)),
        "fit": told(fit, EWMA(), [address]),
        "checkpoint": told(partial(fit, checkpoint=address), EWMA(), [ONE]),
        "model": told(load_model, address),
        "model's path": told(load_model, Path(address)),
        "save": told(save_model, EWMA(), address),
        "registry": told(Registry, address),
        "registry's path": told(Registry, Path(address)),
    }
    for where, text in texts.items():
        assert where == "shown" or "Error: " in text  # refused
        assert not parts_of(secret, text), f"{where}: {text}"


@pytest.mark.slow
@given(SHAPES, SECRETS)
@settings(max_examples=15)
def test_no_part_of_a_secret_is_printed_by_a_command(shape, secret):
    address = shape.format(*[secret] * shape.count("{}"))
    with pytest.MonkeyPatch.context() as monkey:
        text = command(address, monkey)
    assert "error" in text
    assert not parts_of(secret, text), text


@given(SHAPES, SECRETS)
@settings(max_examples=300)
def test_no_part_of_a_secret_stays_in_the_text_of_a_library(shape, secret):
    address = shape.format(*[secret] * shape.count("{}"))
    said = f"no route from {address!r} ({address}) to '{secret}': {secret}"
    text = told(raises, RuntimeError(said), address)
    assert text.startswith("OSError: ")
    assert not parts_of(secret, text), text


def raises(error, address):
    with hiding(address):
        raise error


@given(SHAPES, SECRETS.filter(lambda secret: not set(secret) & set("@?#")))
def test_the_place_stays_readable_and_hiding_twice_changes_nothing(shape, secret):
    address = shape.format(*[secret] * shape.count("{}"))
    hidden = shown(address)
    assert hidden.startswith(address.partition("://")[0])
    assert hidden.partition("?")[0].endswith(address.rpartition("@")[2].partition("?")[0])
    assert shown(hidden) == hidden


@given(st.text(max_size=60))
def test_a_text_without_an_address_is_shown_as_it_is(text):
    assume(":/" not in text)
    assert shown(text) == without_secrets(text) == text


def test_two_files_below_an_address_with_a_secret_are_told_apart_in_an_index_and_a_card(tmp_path):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for name in ("one", "two"):
        trace = Trace([[8, 8]], [[1, 2]], meta={"job": name})
        memory.pipe(f"/user:HUSHHUSH@bucket/jobs/{name}.parquet", trace.save(tmp_path / name).read_bytes())
    memory.pipe("/user:HUSHHUSH@bucket/jobs/broken.parquet", b"PAR1")
    try:
        source = Source("memory://user:HUSHHUSH@bucket/jobs")
        assert [trace.name for trace in source] == ["one", "two"]
    finally:
        memory.store.clear()
    assert [fact.file for fact in source.facts] == [
        f"memory://***@bucket/jobs/{name}.parquet" for name in ("one", "two")
    ]
    registry = Registry(tmp_path / "models")
    registry.add("first", EWMA(), command="by hand", data=source.facts)
    assert json.loads((registry.folder / "index.json").read_text())["models"]["first"]["data"][1]["name"] == "two"
    written = "".join(file.read_text(errors="replace") for file in registry.folder.rglob("*") if file.is_file())
    assert "HUSH" not in f"{written}{source.left_out}{source._loads}"


def test_the_address_of_a_public_set_is_shown_and_logged_without_its_secret():
    pooch = pytest.importorskip("pooch")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    pooch.get_logger().addHandler(handler)
    url = "https://TOKENTOKEN@127.0.0.1:1/x?sig=SIGNATURE"
    try:
        text = told(lambda: fetch("nab", "none", url=url)) + told(lambda: fetch_one(url))
    finally:
        pooch.get_logger().removeHandler(handler)
    assert lines
    assert not {"TOKEN", "SIGNATURE"} & {part for part in ("TOKEN", "SIGNATURE") if part in f"{text}{lines}"}


def fetch_one(url):
    import tempfile

    from paceline.datasets.remote_sets import REMOTE_SETS

    name, one = next(iter(REMOTE_SETS.items()))
    with tempfile.TemporaryDirectory() as cache:
        return fetch(name, one.files[0].name, url=url, cache=cache)


@pytest.mark.slow
def test_a_tracking_server_is_named_without_its_password(tmp_path):
    pytest.importorskip("mlflow")
    registry = Registry(tmp_path)
    registry.add("quick", EWMA(), command="by hand")
    text = told(to_mlflow, registry, "quick", "nothing://user:HUSHHUSH@host/runs")
    assert "nothing://***@host/runs" in text
    assert "HUSH" not in text


@pytest.mark.parametrize(
    ("address", "readable"),
    [
        ("http://host/x", True),
        ("http://127.0.0.1@host/x", True),
        ("HTTP://host/x", True),
        ("ftp://host/x", True),
        ("http://localhost:80/x", False),
        ("http://[::1]:80/x", False),
        ("https://host/x", False),
    ],
)
def test_what_others_on_the_way_can_read(address, readable):
    assert is_readable(address) == readable
