"""The example that embeds the load balancer in an asyncio service of somebody else's."""

import asyncio
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "asyncio_coordinator"
pytestmark = [pytest.mark.checkout, pytest.mark.timeout(30)]


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"asyncio_coordinator_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def trained(workers, *, fleet, iterations=14, patience=5.0, late=()):
    """Run the service with these coroutines of a port as workers, and return (plan, report) of every iteration."""
    service = loaded("server").Service(global_batch=60, patience=patience)
    server = await asyncio.start_server(service.greet, "127.0.0.1", 0)
    port, seen = server.sockets[0].getsockname()[1], []
    async with server:
        tasks = [asyncio.create_task(worker(port)) for worker in workers]
        async for iteration, plan, report in service.train(fleet, iterations):
            seen.append((plan, report))
            if iteration == 3:
                tasks += [asyncio.create_task(worker(port)) for worker in late]
        await asyncio.gather(*tasks)
    return seen


def worker(name, speed):
    """Return a worker whose work takes exactly as long as it should: on a busy machine a real sleep takes longer."""
    module, now = loaded("worker"), 0.0

    async def sleep(seconds):
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    module.time = SimpleNamespace(perf_counter=lambda: now)
    module.asyncio = SimpleNamespace(sleep=sleep, open_connection=asyncio.open_connection)
    return lambda port: module.work(port, name, [speed])


def answering(name, lines):
    """Return a worker that sends these lines, one an iteration, and then nothing more."""

    async def work(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(json.dumps({"worker": name}).encode() + b"\n")
        for line in lines:
            await reader.readline()
            writer.write(line + b"\n")
        await reader.read()  # silent until the service hangs up
        writer.close()
        await writer.wait_closed()

    return work


def test_half_speed_gets_half_the_samples():
    plans = [plan for plan, _ in asyncio.run(trained([worker("a", 4000.0), worker("b", 2000.0)], fleet=2))]
    sizes = [dict(zip(plan.workers, plan.sizes.tolist(), strict=True)) for plan in plans]
    assert all(sum(each.values()) == 60 for each in sizes)
    assert sizes[-1] == {"a": 40, "b": 20}


def test_a_worker_that_comes_later_gets_its_share():
    seen = asyncio.run(trained([worker("a", 4000.0)], fleet=1, late=[worker("b", 4000.0)]))
    assert seen[0][0].workers == ("a",)
    assert seen[-1][0].workers == ("a", "b")
    assert (seen[-1][0].sizes > 10).all()
    assert all(plan.sizes.sum() == 60 for plan, _ in seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "last", [[], [b"no json"], [b'{"t": "soon", "c": 1, "m": 1}'], [b"17"]], ids=["silent", "no json", "text", "number"]
)
def test_silent_or_nonsense_worker_left_behind(last):
    well = [b'{"t": 0.01, "c": 0.5, "m": 1e9}'] * 3
    seen = asyncio.run(trained([worker("a", 4000.0), answering("b", well + last)], fleet=2, patience=0.3))
    assert len(seen) == 14
    assert seen[0][0].workers == ("a", "b")
    assert seen[-1][0].workers == ("a",)
    assert seen[-1][0].sizes.tolist() == [60]


def test_equal_names_keep_their_places():
    seen = asyncio.run(trained([worker("a", 4000.0), worker("a", 4000.0)], fleet=1, iterations=5))
    assert {plan.workers for plan, _ in seen} == {("a",)}
