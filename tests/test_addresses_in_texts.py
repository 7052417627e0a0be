"""What is shown of an address, and of a library's text about it, sign by sign."""

import pytest

from paceline._address import PLAIN_OPTIONS, hiding, is_address, is_readable, shown, without_secrets


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket/jobs", "s3://bucket/jobs"),
        ("s3:/key@bucket/jobs", "s3:/***@bucket/jobs"),
        ("s3://a@b@c/jobs?x=1", "s3://***@c/jobs?***"),
        ("s3://bucket/jobs#part", "s3://bucket/jobs#***"),
        ("s3://bucket/jobs#a?b", "s3://bucket/jobs#***"),
        ("s3://bucket/jobs?", "s3://bucket/jobs?***"),
        ("s3://user:pa?ss@bucket/jobs", "s3://***"),
        ("--out=s3://a@b/c", "--out=s3://***@b/c"),
        ("C:/a@b?c", "C:/a@b?c"),
        ("a@b?c", "a@b?c"),
    ],
)
def test_what_is_shown_of_an_address(address, expected):
    assert shown(address) == expected


@pytest.mark.parametrize(
    ("text", "address", "expected"),
    [
        ("no abcd", "s3://abcd@bucket", "no ***"),
        ("no abc", "s3://abc@bucket", "no abc"),
        ("no abcdefgh and abcd", "s3://abcd:abcdefgh@bucket", "no *** and ***"),
        ("no abcd:efgh or efgh", "s3://user:abcd:efgh@bucket", "no *** or ***"),
        ("no tokentoken", "s3://bucket?sig=tokentoken", "no ***"),
        ("no barebare", "s3://bucket?barebare", "no ***"),
        ("no aaaa, bbbb", "s3://bucket?x=aaaa;y=bbbb", "no ***, ***"),
        ("no aaaa, bbbb", "s3://bucket?x=aaaa&y=bbbb", "no ***, ***"),
        ("no eu-west in s3s3", "s3://bucket?region=eu-west&scheme=s3s3", "no eu-west in s3s3"),
        ("no host-at-home", "s3://bucket?endpoint_override=host-at-home", "no host-at-home"),
        ("no a b+c, a%20b%2Bc, a+b%2Bc", "s3://a b+c@bucket", "no ***, ***, ***"),
        ("no a b+c", "s3://a%20b%2Bc@bucket", "no ***"),
        ("over http and https", "s3://https://keykey@bucket", "over http and https"),
        ("no s3://abcd@bucket", "s3://abcd@bucket", "no s3://***@bucket"),
        ("see 's3://key@bucket'; (https://a@b).", "", "see 's3://***@bucket'; (https://***@b)."),
        ("see s3://bucket/x?sig=1234, or more", "", "see s3://bucket/x?***, or more"),
        ("no key in key", "key", "no key in key"),
        ("no s3%3A//abc%40bucket", "s3://abc@bucket", "no s3://***@bucket"),
        ("no a%20b", "a b", "no a%20b"),
    ],
)
def test_what_is_shown_of_a_text(text, address, expected):
    assert without_secrets(text, address) == expected


def test_options_that_are_no_secrets_are_these():
    assert PLAIN_OPTIONS == ("endpoint_override", "scheme", "region")


class Odd(Exception):  # noqa: N818 - some library's own kind
    pass


class Missing(FileNotFoundError):  # noqa: N818 - as above
    pass


@pytest.mark.parametrize(
    ("error", "cause", "kind", "expected"),
    [
        (Odd("no hushhush"), None, OSError, "s3://***@bucket: no ***"),
        (Odd(), None, OSError, "s3://***@bucket: Odd"),
        (Odd("odd"), ValueError("of hushhush"), OSError, "s3://***@bucket: odd: of ***"),
        (Odd("odd"), ValueError(), OSError, "s3://***@bucket: odd: ValueError"),
        (Missing("at s3://hushhush@bucket"), None, FileNotFoundError, "at s3://***@bucket"),
        (ModuleNotFoundError("no s3fs"), None, ImportError, "s3://***@bucket: no s3fs"),
        (UnicodeError("bad"), None, ValueError, "s3://***@bucket: bad"),
        (PermissionError("shut"), None, OSError, "s3://***@bucket: shut"),
    ],
)
def test_an_error_of_a_library_becomes_one_of_four_kinds_with_the_name_and_without_secrets(
    error, cause, kind, expected
):
    with pytest.raises(kind) as told, hiding("s3://hushhush@bucket"):
        raise error from cause
    assert type(told.value) is kind
    assert str(told.value) == expected
    assert told.value.__suppress_context__
    assert told.value.__cause__ is None


def test_what_is_an_address():
    told = {"s3://b": True, "s3:/b": True, "gs.x+y-z://b": True, "simplecache::s3://b": True, " s3://b": False}
    told |= {"C:/b": False, "3s://b": False, "s3:b": False, "/a/s3:/b": False, "": False}
    assert {text: is_address(text) for text in told} == told


def test_what_can_be_read_on_the_way():
    told = {"http://host": True, "ftp://host": True, "https://host": False, "s3://host": False, "http://[::1]": False}
    told |= {"http://127.0.0.1": False, "ftp://localhost": False, "http://[half": True, "FTP://[half": True}
    told |= {"https://[half": False, "s3://[half": False, "/a/file": False}
    assert {text: is_readable(text) for text in told} == told
