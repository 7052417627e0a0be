"""Run code in a process of its own that may take only so much more memory and CPU time than it had after its imports.

The kernel holds the limits, not a clock: a machine under load makes a test slow, but never makes it fail.
"""

import os
import subprocess
import sys

PREAMBLE = """
import resource, sys

def limit(megabytes, cpu_seconds):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu_seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
"""
# One arena and one memory pool: others reserve address space that nobody uses.
SETTINGS = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}


def bounded(code, *arguments):
    """Run code that calls ``limit(megabytes, cpu_seconds)`` after its imports, and return what it printed."""
    environment = os.environ | SETTINGS | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PREAMBLE + code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip()
