"""A custom training service with asyncio and JSON lines, and a `LoadBalancer` at its barrier.

A worker sends its name, receives its batch size x, and answers each iteration with <t, c, m>: its compute time in
seconds, and its free CPU and memory. Workers may join and leave; a worker that does not answer is dropped.
"""

import argparse
import asyncio
import json

from paceline.coordinator import LoadBalancer
from paceline.predictors import RLS, Report

NOTHING = {"t": float("nan"), "c": float("nan"), "m": float("nan")}
"""The report for a worker that did not answer."""


class Service:
    """The barrier of one job: all workers get a batch size, all answer, and the next sizes follow."""

    def __init__(self, global_batch, patience=10.0):
        self.global_batch, self.patience = global_batch, patience
        self.connections, self.newcomers = {}, asyncio.Queue()

    async def greet(self, reader, writer):
        """Read the name of a worker that has just connected."""
        hello = json.loads(await reader.readline())
        await self.newcomers.put((hello["worker"], reader, writer))

    async def train(self, fleet, iterations):
        """Wait for this many workers, then yield each iteration's number, plan and report."""
        while len(self.connections) < fleet:
            self.admit(*await self.newcomers.get())
        balancer = LoadBalancer(  # Paceline: once
            RLS(covariates=("cpu", "memory")), workers=list(self.connections), global_batch=self.global_batch
        )
        plan, covariates = balancer.plan, None
        for iteration in range(iterations):
            answers = await asyncio.gather(*map(self.one_iteration, plan.workers, plan.sizes, plan.weights))
            known = [answer or NOTHING for answer in answers]
            report = Report(samples=plan.sizes, seconds=[answer["t"] for answer in known], covariates=covariates)
            covariates = [[answer["c"], answer["m"]] for answer in known]
            yield iteration, plan, report
            plan = balancer.step(report, covariates)  # Paceline: at each barrier
            for worker in [worker for worker, answer in zip(plan.workers, answers, strict=True) if not answer]:
                self.connections.pop(worker)[1].close()
                plan, covariates = balancer.leave(worker), None  # Paceline: a worker left
            while not self.newcomers.empty():
                if worker := self.admit(*self.newcomers.get_nowait()):
                    plan, covariates = balancer.join(worker), None  # Paceline: a worker joined
        for _, writer in self.connections.values():
            writer.close()
            await writer.wait_closed()

    def admit(self, worker, reader, writer):
        """Accept a worker, and return its name; refuse a name that another worker has."""
        if worker in self.connections:
            return writer.close()
        self.connections[worker] = reader, writer
        return worker

    async def one_iteration(self, worker, x, weight):
        """Send a worker its batch size and return its answer, or None if it does not answer in time."""
        reader, writer = self.connections[worker]
        writer.write(json.dumps({"x": int(x), "weight": float(weight)}).encode() + b"\n")
        try:
            answer = json.loads(await asyncio.wait_for(reader.readline(), self.patience))
            return {name: float(answer[name]) for name in NOTHING}
        except (TimeoutError, OSError, ValueError, KeyError, TypeError):
            return None


async def serve(options):
    """Run one job and print every iteration."""
    service = Service(options.global_batch, options.patience)
    async with await asyncio.start_server(service.greet, options.host, options.port):
        async for iteration, plan, report in service.train(options.fleet, options.iterations):
            took = " ".join(f"{1e3 * seconds:.0f}" for seconds in report.seconds)
            print(
                f"{iteration}: {dict(zip(plan.workers, plan.sizes.tolist(), strict=True))} took {took} ms. {plan.why}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7777)
    parser.add_argument("--fleet", type=int, default=3, help="workers to wait for before the first iteration")
    parser.add_argument("--global-batch", type=int, default=120)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds until a silent worker is dropped")
    asyncio.run(serve(parser.parse_args()))
