"""A worker of the service. It simulates a framework: its work is a sleep, and it slows down halfway."""

import argparse
import asyncio
import json
import os
import time


def free_cpu_and_memory():
    """Return the idle share of the machine's CPU, and its free memory in bytes."""
    idle = 1 - os.getloadavg()[0] / os.cpu_count()
    return idle, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


async def work(port, worker, speeds, host="127.0.0.1"):
    """Run one iteration at each speed (samples/s), then the rest at the last speed; return the sizes."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(json.dumps({"worker": worker}).encode() + b"\n")
    sizes = []
    while line := await reader.readline():
        sizes.append(json.loads(line)["x"])
        start = time.perf_counter()
        await asyncio.sleep(sizes[-1] / speeds[min(len(sizes), len(speeds)) - 1])  # forward and backward go here
        seconds = time.perf_counter() - start
        cpu, memory = free_cpu_and_memory()
        writer.write(json.dumps({"t": seconds, "c": cpu, "m": memory}).encode() + b"\n")
    writer.close()
    await writer.wait_closed()
    return sizes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worker", help="a name of its own")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7777)
    parser.add_argument("--speed", type=float, default=1000.0, help="samples/s at first")
    parser.add_argument("--later", type=float, default=None, help="samples/s after 15 iterations")
    options = parser.parse_args()
    then = [options.speed] * 15 + [options.later or options.speed]
    sizes = asyncio.run(work(options.port, options.worker, then, host=options.host))
    print(f"{options.worker}: {sizes}")
