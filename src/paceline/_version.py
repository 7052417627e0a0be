"""The version of the installed package, read in one place."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("paceline")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"
