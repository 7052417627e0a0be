"""Text that came from a file, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text with every unprintable character escaped, so that a terminal shows it and does not act on it.

    A name in a file may hold escape sequences that clear the screen, set the clipboard (OSC 52) or rename the window;
    marks that reverse the direction of writing; or a lone surrogate, which cannot be printed at all.

    >>> print(printable("gpu0\x1b]52;c;aGk=\x07 on host\u202e7"))
    gpu0\x1b]52;c;aGk=\x07 on host\u202e7
    >>> printable("Zürich-7")
    'Zürich-7'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def escape_surrogates(text: str) -> str:
    r"""Return a text with each lone surrogate escaped, which no protocol can transfer; JSON from anybody may hold one.

    >>> escape_surrogates("gpu\ud800"), escape_surrogates("Zürich-7")
    ('gpu\\ud800', 'Zürich-7')
    """
    return text.encode("utf-8", "backslashreplace").decode()
