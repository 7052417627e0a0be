"""Flower's own processes on this machine's loopback: a SuperLink, SuperNodes, and a run submitted to them."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import paceline

BIN = Path(sys.executable).parent
SOURCES = str(Path(paceline.__file__).parents[1])
APP = Path(__file__).parent / "flower_app"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def await_port(port, seconds=120):
    """Wait until somebody listens there: a busy machine takes a while to start a SuperLink."""
    for _ in range(10 * seconds):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port} after {seconds} s")


@contextmanager
def process(command, folder, name):
    """Run a command with its output in a file, and end it and all that it started."""
    with (folder / f"{name}.log").open("w") as log:
        one = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment(folder), cwd=folder, start_new_session=True
        )
        try:
            yield one
        finally:
            one.terminate()
            try:
                one.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, 9)
                one.wait()


def environment(folder):
    """Return where Flower keeps its files, and no word to anybody outside."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {
        **os.environ,
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": SOURCES,
        "PATH": path,
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def federation(folder, clients):
    """Start a SuperLink and SuperNodes; a run can then be submitted with `submitted`."""
    port = free_port()  # of all that a SuperLink offers
    home = folder / "home"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "trial"\n\n[superlink.trial]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = [
        BIN / "flower-superlink",
        "--insecure",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--disable-runtime-dependency-installation",
    ]
    with ExitStack() as stack:
        stack.enter_context(process(link, folder, "superlink"))
        await_port(port)
        for i in range(clients):
            node = [
                BIN / "flower-supernode",
                "--insecure",
                "--superlink",
                f"127.0.0.1:{port}",
                "--port",
                str(free_port()),
                "--node-config",
                f"partition-id={i} num-partitions={clients}",
            ]
            stack.enter_context(process(node, folder, f"supernode-{i}"))
        yield


def submitted(folder, app=APP, **config):
    """Run an app to its end, and return what it printed."""
    values = " ".join(f"{name}={_toml(value)}" for name, value in config.items())
    command = [BIN / "flwr", "run", str(app), "trial", "--stream", *(["--run-config", values] if values else [])]
    done = subprocess.run(command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=240)
    return done.stdout + done.stderr


def _toml(value):
    return f'"{value}"' if isinstance(value, str | Path) else str(value).lower()
