"""Addresses of stores and servers, which may hold keys, tokens and signatures: what may be shown, and asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

HIDDEN = "***"

SHORTEST = 4
"""Characters of the shortest part of a secret that is looked for in a library's text; a shorter one is in any text."""

PLAIN_OPTIONS = ("endpoint_override", "scheme", "region")
"""Options of an address that are no secrets: a library's error may name them."""

READABLE = ("http", "ftp")
"""Protocols by which everybody on the way can read and change what passes."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_BEGIN = re.compile(r"[A-Za-z][\w+.:-]+:/+")  # a path has one slash of the two; C:/ is a drive
_IN_TEXT = re.compile(_BEGIN.pattern + r"\S*")


def shown(address: str) -> str:
    """Return the part of an address that may be shown: not what is before its last ``@`` or behind its first ``?``.

    A secret may itself hold ``/``, ``@`` or ``?``, so where its end is not certain, more is hidden. A token within the
    path cannot be told from a name, and is shown.

    Parameters
    ----------
    address
        An address, or a text that ends with one, such as an argument of a command.

    Examples
    --------
    >>> shown("s3://key:se/cr@et@bucket/jobs"), shown("--fit-on=https://token@host/jobs.csv?X-Amz-Signature=f00")
    ('s3://***@bucket/jobs', '--fit-on=https://***@host/jobs.csv?***')
    """
    if (begin := _BEGIN.search(address)) is None:
        return address
    rest = address[begin.end() :]
    path, mark, query = _split_query(rest)
    if "@" in query:  # part of a secret before the name of a host, or of one behind it
        rest = HIDDEN
    else:
        _, at, place = path.rpartition("@")
        rest = f"{at and HIDDEN}{at}{place}{mark}{mark and HIDDEN}"
    return address[: begin.end()] + rest


def without_secrets(text: str, address: str = "") -> str:
    """Return a text, such as a library's error, without the secrets of this address, and of any other in it.

    >>> without_secrets("no bucket 'hush' at https://token@host:1", "s3://hush/hush:hush@bucket")
    "no bucket '***' at https://***@host:1"
    """
    if _BEGIN.search(address):
        for form in _written(address):
            text = text.replace(form, shown(address))
    for secret in sorted(_secrets(address), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _IN_TEXT.sub(lambda found: _shown_in_text(found[0]), text)


@contextmanager
def hiding(address: str) -> Iterator[None]:
    """Turn a library's error into one that names the address and shows none of its secrets.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        As the library does.
    OSError
        For anything else that it raises.
    """
    try:
        yield
    except Exception as error:  # each library has its own kinds, from none in common
        kind = next((kind for kind in (FileNotFoundError, ImportError, ValueError) if isinstance(error, kind)), OSError)
        said = [f"{one}" or type(one).__name__ for one in (error, error.__cause__) if one is not None]
        text, name = without_secrets(": ".join(said), address), shown(address)
        # Without the cause, and what came before it: their texts hold the secret.
        raise kind(text if name in text else f"{name}: {text}") from None


def is_address(text: str) -> bool:
    """Return whether a text is an address, or a path that was made of one, and no file of this machine.

    >>> is_address("s3://bucket/jobs"), is_address("s3:/bucket/jobs"), is_address("C:/jobs"), is_address("jobs")
    (True, True, False, False)
    """
    return _BEGIN.match(text) is not None


def is_readable(address: str) -> bool:
    """Return whether others on the way can read and change what an address answers: plain http, but for this machine.

    >>> is_readable("http://host/jobs"), is_readable("http://127.0.0.1:80/jobs"), is_readable("https://host/jobs")
    (True, False, False)
    """
    try:
        parts = urlsplit(address)
    except ValueError:  # whose text would hold the secret
        return address.lower().partition(":")[0] in READABLE
    return parts.scheme in READABLE and parts.hostname not in LOOPBACK


def _split_query(rest: str) -> tuple[str, str, str]:
    """Return what stands before the first ``?`` or ``#``, that sign, and what stands behind it."""
    place = re.search(r"[?#]", rest)
    return (rest, "", "") if place is None else (rest[: place.start()], place[0], rest[place.end() :])


def _secrets(address: str) -> set[str]:
    """Return all that may be a secret in an address, also as libraries write it."""
    begin = _BEGIN.search(address)
    rest = "" if begin is None else address[begin.end() :]
    credentials, query = rest.rpartition("@")[0], _split_query(rest)[2]
    pieces = {credentials, *credentials.split(":", 1), *re.split(r"[:/@?#&=]", credentials)}
    for option in re.split("[&;]", query):
        name, _, value = option.partition("=")
        pieces |= set() if name in PLAIN_OPTIONS else {value or name}
    pieces -= {"http", "https"}  # of an address within an address
    return {form for piece in pieces for form in _written(piece) if len(form) >= SHORTEST}


def _written(piece: str) -> set[str]:
    """Return the forms in which a library may write a part of an address."""
    return {piece, repr(piece)[1:-1], unquote(piece), unquote_plus(piece), quote(piece), quote_plus(piece)}


def _shown_in_text(found: str) -> str:
    """Return what may be shown of an address in a text, with the punctuation that ends it there."""
    address = found.rstrip("\"'`:;,.)]}>")
    return shown(address) + found[len(address) :]
