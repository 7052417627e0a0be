"""The asynchronous server under a lock: waiting, checkpoints, and what a failure of the user's own code does."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Server, saps, scheme
from paceline.parameter_server.service import RoundRecorder, Service
from paceline.predictors import LastValue
from paceline.recording import Sink, read_async_run, sinks

SAMPLES, BATCH = 40, 5


def service_of(name="asp", workers="ab", rate=0.1, epochs=1, bound=None, **options):
    rules = scheme(name, len(workers))
    rules = rules if bound is None else replace(rules, bound=bound)
    sampler = EpochSampler(SAMPLES, epochs=epochs)
    return Service(Server(np.zeros(2), SGD(rate), rules, sampler, batch=BATCH, workers=workers), **options)


def step(service, worker):
    """Pull and push; return the verdict, or None where the training has ended."""
    work = service.pull(worker)
    return None if work.ended else service.push(worker, work.stamp, np.ones(2))


def to_the_end(service, workers="ab"):
    while any(step(service, worker) for worker in workers):
        pass


def test_checkpoints_at_intervals_and_at_the_end(tmp_path):
    path = tmp_path / "run.safetensors"
    service = service_of(checkpoint=path, checkpoint_every=2 * BATCH)
    seen = []
    while step(service, "a"):
        behind = service.server.sampler.applied
        if path.is_file():
            again = service_of(checkpoint=path)
            again.resume()
            behind -= again.server.sampler.applied
        seen.append(behind)
    assert max(seen) < 2 * BATCH
    assert seen[-1] == 0, "nothing is lost once the training has ended"


def test_full_disk_does_not_end_training(tmp_path, caplog):
    service = service_of(checkpoint=tmp_path / "gone" / "run.safetensors", checkpoint_every=BATCH, epochs=3)
    for _ in range(10):
        step(service, "a")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "could not write a checkpoint" in caplog.text
    (tmp_path / "gone").mkdir()
    to_the_end(service)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "are written to" in caplog.records[1].getMessage()
    again = service_of(checkpoint=tmp_path / "gone" / "run.safetensors", epochs=3)
    assert again.resume()
    assert again.server.is_finished


def test_wrong_checkpoint_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    service = service_of(checkpoint=path, epochs=3)
    to_the_end(service)
    shorter = service_of(checkpoint=path, epochs=2)
    with pytest.raises(ValueError, match="cannot be resumed: the state is in epoch 3, but epochs is 2"):
        shorter.resume()
    assert (shorter.server.version, shorter.server.sampler.applied) == (0, 0)
    from safetensors.numpy import save_file

    save_file({"weights": np.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"the state must come from .* an asynchronous server"):
        shorter.resume()


def test_failing_listener_is_logged_once(caplog):
    def broken(verdict):
        raise KeyError("board")

    heard = []
    service = service_of(on_verdict=[broken, heard.append])
    to_the_end(service)
    assert len(heard) == SAMPLES // BATCH
    assert caplog.text.count("a listener of on_verdict raised") == 1


def test_failed_update_ends_the_job():
    service = service_of(rate=lambda applied: 1 / 0)
    work = service.pull("a")
    with pytest.raises(ZeroDivisionError):
        service.push("a", work.stamp, np.ones(2))
    with pytest.raises(RuntimeError, match="the server has failed: ZeroDivisionError"):
        service.pull("b")


@pytest.mark.parametrize("act", ["leaves", "begins anew", "is given up"])
def test_failed_update_after_a_leave_ends_the_job(act):
    patience = 0.05 if act == "is given up" else 30.0
    service = service_of("saps", "abc", rate=lambda applied: 1 / 0 if applied else 0.1, bound=1, patience=patience)
    service.pull("c")
    # The second push waits for c, which is at the bound: it is applied when c is gone.
    assert [step(service, "a").outcome for _ in range(2)] == [Outcome.APPLIED, Outcome.GATHERED]
    service.server.sampler.draw(SAMPLES)  # nothing is left to do
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(service.pull, worker) for worker in "ab"]
        if act != "is given up":
            with pytest.raises(ZeroDivisionError):
                (service.leave if act == "leaves" else service.join)("c")
        said = [repr(one.exception(timeout=10)) for one in waiting]
    assert sum("ZeroDivisionError" in one for one in said) == 2
    assert sum("the server has failed" in one for one in said) == (1 if act == "is given up" else 2)
    service.leave("b")  # it changes nothing any more, and a second failure would hide the first
    with pytest.raises(RuntimeError, match="the server has failed"):
        service.join("d")


@pytest.mark.slow
def test_steps_longer_than_the_patience_end():
    service = service_of("asp", "abc", patience=0.02)

    def train(worker):
        for _ in range(30):
            work = service.pull(worker)
            if work.ended:
                return True
            time.sleep(0.1)
            service.push(worker, work.stamp, np.ones(2))
        return False

    with ThreadPoolExecutor() as pool:
        assert all(pool.map(train, "abc")), "each gives the other's last step up, for ever"


@pytest.mark.parametrize("name", ["k-sync", "backup", "k-async"])
def test_small_fleet_does_not_wait_for_more_pushes(name):
    service = service_of(name, workers="abcdefgh", epochs=2)
    for worker in "abcdef":
        service.pull(worker)
        service.leave(worker)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda worker: to_the_end(service, worker), "gh"))
    assert service.server.is_finished


def test_holder_of_the_last_samples_is_given_up(caplog):
    caplog.set_level(logging.WARNING)
    service = service_of("asp", workers="abc", patience=0.05)
    service.pull("c")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda worker: to_the_end(service, worker), "ab"))
    assert service.server.is_finished
    assert "gave up on c" in caplog.text
    assert service.server.ledger.steps(Outcome.ABANDONED) >= 1


def test_unfit_checkpoint_is_written_later(tmp_path, room, caplog):
    path = tmp_path / "run.safetensors"
    server = Server(np.zeros(2), SGD(0.1), scheme("asp", 1), EpochSampler(8, epochs=1), batch=4, workers="a")
    service = Service(server, checkpoint=path, checkpoint_every=4)
    for size in (64, None):
        room(size)
        service.push("a", service.pull("a").stamp, np.ones(2))
        assert path.is_file() == (size is None)
    assert caplog.text.count("could not write a checkpoint") == 1


# -- rounds, as metrics and records take them -------------------------------------------------------------------------

WORKERS = ("fast", "slow", "worse")


def trained(sinks, *arguments, **options):
    server = trained_with(sinks, *arguments, **options)
    for sink in sinks:
        if isinstance(sink, Sink):
            sink.close()
    return server


def trained_with(sinks, rules=None, samples=240, bad=0):
    """Train with a worker that pushes once for eight steps of two others, and return the server."""
    server = Server(
        np.zeros(2),
        SGD(0.1),
        rules or scheme("asp", 3),
        EpochSampler(samples, epochs=1),
        batch=8,
        workers=WORKERS,
        predictor=LastValue(),
    )
    service = Service(server, patience=0.05)  # the slow one holds the last samples
    RoundRecorder(service, sinks, min_seconds=0.0)
    held = service.pull("worse")
    for turn in range(10**6):
        for worker in ("fast", "slow"):
            work = service.pull(worker)
            if work.ended:
                return server
            gradient = np.full(2, np.nan if turn < bad else 1.0)
            service.push(worker, work.stamp, gradient, seconds=len(work.assigned) / 100)
        if turn % 8 == 7 or server.sampler.is_exhausted:
            if not held.ended:
                service.push("worse", held.stamp, np.ones(2), seconds=len(held.assigned) / 10)
            held = service.pull("worse")
    return server


def test_sink_round_trip_with_ledger(tmp_path):
    path, seen = tmp_path / "run.jsonl", []
    server = trained([*sinks(str(path)), seen.append])
    run = read_async_run(path)
    assert (run.scheme, run.bound, run.batch, run.workers) == ("ASP", None, 8, WORKERS)
    assert len(run) == len(seen)
    np.testing.assert_array_equal(run.worker_columns["staleness"], [one.staleness for one in seen])
    assert run.fleet_columns["applied"][-1] == server.sampler.applied == 240
    assert run.worker_columns["done"][-1].sum() == 240
    assert run.fleet_columns["largest"][-1] == server.ledger.largest_staleness
    assert run.stragglers[-1] == ("worse",)
    assert "worse is a straggler: its" in " ".join(run.why)


def test_wasted_samples_by_kind_and_reason(tmp_path):
    path = tmp_path / "run.jsonl"
    server = trained(sinks(str(path)), saps(3, bound=2), bad=1)
    run = read_async_run(path)
    accounts = server.ledger.accounts.values()
    assert run.worker_columns["wasted"][-1].sum() == sum(account.wasted for account in accounts)
    assert run.fleet_columns["refused"][-1] > 0
    assert run.fleet_columns["abandoned"][-1] > 0
    assert run.fleet_columns["wasted_share"][-1] == pytest.approx(
        server.ledger.wasted_share, rel=1e-5
    )  # six digits are written
    told = " ".join(run.why)
    assert "Refused the push of fast: 2 of its 2 numbers are NaN" in told
    assert "Steps given up at the bound: worse" in told


def watched(workers="abc", name="asp", applied=0):
    """Return a service that has applied so many samples before it was resumed, and the rounds that it will see."""
    server = Server(np.zeros(1), SGD(0.1), scheme(name, 3), EpochSampler(400, epochs=1), batch=8, workers=workers)
    if applied:
        earlier = Server(
            np.zeros(1), SGD(0.1), scheme(name, 3), EpochSampler(400, epochs=1), batch=applied, workers="a"
        )
        earlier.push("a", earlier.pull("a").stamp, np.ones(1))
        server.load_state_dict(earlier.state_dict())
    service, rounds = Service(server), []
    RoundRecorder(service, [rounds.append], min_seconds=0.0)
    return service, rounds


def push(service, *workers, value=1.0):
    for worker in workers:
        service.push(worker, service.pull(worker).stamp, np.full(1, value))


def test_round_names_joins_and_leaves():
    service, rounds = watched()
    push(service, *"abc")
    assert not rounds[-1].acted
    service.pull("c")
    service.leave("c")
    push(service, *"ab")
    assert rounds[-1].acted
    assert rounds[-1].why == "Left: c. 8 samples of steps that were given up went back."
    service.join("d")
    push(service, *"abd")
    assert rounds[-1].why == "Joined: d."
    service.pull("a")
    service.pull("a")  # it has lost its first step
    push(service, *"abd")
    assert rounds[-1].why == "16 samples of steps that were given up went back."


def test_resumed_run_counts_waste_since():
    service, rounds = watched(applied=300)
    push(service, "a", value=np.nan)
    push(service, *"bc")
    assert rounds[-1].applied == 316
    assert rounds[-1].wasted_share == service.server.ledger.wasted_share == pytest.approx(1 / 3)
