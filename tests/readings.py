"""What the tests of all readers share: short names for reading, and the layouts of some formats."""

import json
from functools import cache

from paceline.datasets import read_traces

NAN = float("nan")

MACHINES = "m_1,0,50,60,,,1.5,2.5,3\nm_2,0,-1,61,1,2,1.5,2.5,101\nm_1,20,52,62,,,1.5,2.5,3\nm_2,10,70,63,1,2,3,4,5\n"

DSTAT = (
    '"Dstat 0.7.2 CSV output"\n"Author:","x",,,,"URL:","y"\n"Host:","h",,,,"User:","u"\n'
    '"Cmdline:","dstat -cdnmgyr",,,,"Date:","01 Jan"\n\n'
    '"total cpu usage",,,,,,"dsk/total",,"net/total",,"memory usage",,,,"paging",,"system",,"io/total",\n'
    '"usr","sys","idl","wai","hiq","siq","read","writ","recv","send","used","buff","cach","free","in","out","int","csw",'
    '"read","writ"\n'
)

DSTAT_ROW = "{},1,98,0,0,0,10,20,0,0,1e9,1,1,1,0,0,100,200,1,2\n"


def only(path, *arguments, **options):
    """The one trace of a file."""
    (trace,) = read_traces(path, *arguments, **options)
    return trace


def covariate(trace, name):
    """A covariate by its name, ``[T, W]``."""
    return trace.covariates_named([name])[:, :, 0]


@cache
def formats():
    """What every format was tried on, by its name."""
    from typer.testing import CliRunner

    from paceline.cli.main import app

    listed = CliRunner().invoke(app, ["data", "list", "formats", "--json"], catch_exceptions=False).stdout
    return {row["name"]: row["tested_on"] for row in json.loads(listed)}
