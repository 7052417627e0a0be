"""What a rank sends after each step, what it does with the reports of all, and what observers are told."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lone_steps import job_maker, rows_of

from paceline.torch import steps as module
from paceline.torch.buffers import FIRST, THEN
from paceline.torch.reports import COLUMNS, RankReports

BUFFER = 0.75


@pytest.fixture
def job_of(monkeypatch):
    return job_maker(monkeypatch)


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("late", "logs"), [(False, ()), (False, (1.0,)), (True, ()), (True, (1.0,))])
@pytest.mark.parametrize("marked", [False, True])
def test_a_rank_sends_what_it_measured_where_it_is_and_what_it_saw_each_in_its_column(
    job_of, micro_batch, first, late, logs, marked
):
    job = job_of(late=late, logs=logs)
    job.loader.micro_batch = micro_batch
    job.steps.out_of_memory = job.passes.foreign = marked
    if first:
        job.passes.handed.sizes = None
    job.steps.send()
    told = RankReports(np.array([job.sent[0]], dtype=float))
    found = {name: told[name][0] for name in COLUMNS}
    wanted = {"samples": 8, "micro_batches": 2 if micro_batch else 4, "steps": 2, "seconds": 0.5, "comm_seconds": 0.125}
    wanted |= {"out_of_memory": marked, "checksum": 77, "epoch": 5, "batches": 6, "assigned": 7, "foreign": marked}
    wanted |= {"total": 0 if first else 8, "log_norm": 0.25 if late or logs else math.nan, "buffers": math.nan}
    assert found == pytest.approx({name: float(one) for name, one in wanted.items()}, nan_ok=True)
    assert len(job.sent[0]) == len(COLUMNS)
    assert (job.steps.out_of_memory, job.passes.foreign) == (False, False), "told once"
    assert job.passes.spent == 4.0, "the clock's report is not part of it"


@pytest.mark.parametrize("features", [0, 2])
@pytest.mark.parametrize("said", [(), (6.0, 7.0)])
@pytest.mark.parametrize("due", [51.0, 51.5])
def test_covariates_and_features_of_the_work_follow_and_are_sampled_where_it_is_time(job_of, features, said, due):
    job = job_of(features=features)
    job.clock.features, job.covariates.next, job.covariates.values = said, due, [0.1, 0.2]
    job.steps.send()
    more = (list(said) or [math.nan] * 2) if features else []
    assert job.sent[0][len(COLUMNS) :] == pytest.approx(
        [*([0.5, 0.75] if due == 51.0 else [0.1, 0.2]), *more], nan_ok=True
    )


@pytest.mark.parametrize("due", [51.0, 51.5])
def test_the_quota_is_looked_at_after_the_report_has_gone_where_it_is_time(job_of, due):
    job = job_of()
    job.clock.next_look = due
    job.steps.send()
    assert job.names() == ["send", "look"] if due == 51.0 else ["send"]


def test_buffers_are_looked_at_in_the_first_exchanges_and_then_in_some(job_of):
    job, model = job_of(), torch.nn.Identity()
    model.register_buffer("centre", torch.tensor(BUFFER))
    job.passes.weightings.append(SimpleNamespace(model=model))
    for _ in range(2 * THEN + 2):
        job.steps.send()
        job.steps.finish()
    looked = [k for k, row in enumerate(job.sent) if row[COLUMNS.index("buffers")] == BUFFER]
    assert looked == [*range(FIRST), THEN, 2 * THEN]
    job.steps._buffers.apart = True
    model.named_modules = None
    job.steps.send()


@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("delay", [0, 1])
def test_reports_are_received_with_the_gradients_unless_a_device_is_behind(job_of, under_way, delay):
    job = job_of(delay=delay)
    job.exchange.under_way = under_way
    job.steps.backward_ends()
    assert (job.steps.rows is not None) == (under_way and not delay)
    if under_way and not delay:
        assert job.names() == ["wait", "receive", "wait ends", "learn"], "the wait is for others"
        assert job.called[-1][1] is job.steps.rows


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("features", [0, 2])
def test_reports_come_in_the_order_of_the_plan_with_the_features_of_their_work(job_of, in_order, features):
    job = job_of(in_order=in_order, order=(1, 0), features=features)
    job.steps.send()
    job.steps.backward_ends()
    assert job.steps.rows["samples"].tolist() == ([8.0, 16.0] if in_order else [16.0, 8.0])
    assert job.steps.rows.features_WF.tolist() == [[one] * features for one in ([0.5, 1.5] if in_order else [1.5, 0.5])]


def test_a_loop_is_trusted_after_three_exchanges_without_other_data_and_never_after_one_with_it(job_of):
    for foreign_at in (None, 0, 2, 4):
        job, found = job_of(), []
        for exchange in range(7):
            job.rows = rows_of(job, foreign=[0.0, float(exchange == foreign_at)])
            job.steps.send()
            job.steps.backward_ends()
            found.append(job.passes.mixes)
        assert found == [k < 2 or (foreign_at is not None and k >= foreign_at) for k in range(7)]


def test_how_often_a_loop_sums_gradients_is_learned_from_its_first_three_exchanges(job_of):
    job, found = job_of(), []
    for sums in (2, 1, 4, 5, 9):
        job.passes.sums = sums
        job.steps.begin()
        found.append((job.passes.usual_sums, job.passes.sums))
        job.steps.send()
    assert found == [(2, 0), (2, 0), (4, 0), (5, 0), (5, 0)]
    assert module.TRUSTED == 3


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("early", [False, True])
def test_the_time_of_balancing_is_that_of_measuring_and_planning_without_the_wait(job_of, together, early):
    job = job_of()
    job.rows = rows_of(job, checksum=[77.0, 77.0 if together else 78.0])
    assert job.steps.overhead_seconds == 0.0
    job.steps.send()
    job.passes.spent = 2.0
    if early:
        job.steps.backward_ends()
        assert job.steps.overhead_seconds == 2.0 + 3.0 * together
    job.steps.finish()
    assert job.steps.overhead_seconds == 2.0 + 3.0 * together
    assert job.passes.spent == 0.0


def test_nothing_happens_where_no_report_was_sent(job_of):
    job = job_of()
    job.steps.observers.append(job.call)
    job.passes.spent = 2.0
    job.steps.finish()
    assert (job.called, job.passes.spent) == ([], 2.0)


@pytest.mark.parametrize("early", [False, True])
def test_ranks_that_agree_hand_the_plan_over_and_observers_are_told_once(job_of, early):
    job, told = job_of(), []
    job.steps.observers += [lambda one: told.append(one), lambda one: told.append(one)]
    job.planning.plan.forecast = SimpleNamespace(curves=SimpleNamespace(busy_seconds=lambda work_W: 2.0 * work_W))
    job.steps.begin()
    job.now = 60.0
    job.steps.send()
    if early:
        job.steps.backward_ends()
        assert told == []
    used, job.planning.plan = job.planning.plan, SimpleNamespace(sizes=np.array([4, 4]), iteration=1)
    if not early:
        job.planning.plan = used
    job.now = 75.0
    job.steps.begin()
    assert job.names() == ["send", "wait", "receive", "wait ends", "learn", "hand over"]
    assert (len(told), told[0] is told[1]) == (2, True)
    one = told[0]
    assert (one.index, one.worker, one.wall_seconds, one.plan) == (9, "b", 25.0, job.planning.plan)
    assert (one.overhead_seconds, one.agreed, one.work) == (job.steps.overhead_seconds, True, None)
    assert (one.sizes.tolist(), one.forecast_seconds.tolist()) == ([8, 16], [16.0, 32.0])
    assert job.steps.rows is None
    job.steps.begin()
    assert len(told) == 2


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("costs", [False, True])
def test_a_worker_that_has_measured_nothing_is_told_with_the_batch_that_was_computed_last_in_the_plans_order(
    job_of, computed, costs
):
    work = SimpleNamespace(work=lambda features_WF: 10.0 * features_WF[:, 0])
    job, told = job_of(in_order=False, order=(1, 0), features=2, costs=work if costs else None), []
    job.planning.plan.sizes = np.array([6, 2])
    job.planning.plan.forecast = SimpleNamespace(curves=SimpleNamespace(busy_seconds=lambda work_W: work_W))
    job.rows = rows_of(job, samples=[8.0, math.nan])
    if not computed:
        job.passes.handed.sizes = None
    job.steps.observers.append(told.append)
    job.steps.send()
    job.steps.finish()
    assert told[0].sizes.tolist() == [5 if computed else 6, 8]
    assert math.isnan(told[0].wall_seconds)
    if costs:
        assert told[0].work.tolist() == pytest.approx([math.nan, 5.0], nan_ok=True)


def test_ranks_that_differ_step_once_more_are_settled_and_go_on_at_the_place_of_the_first(job_of):
    job = job_of()
    job.rows = rows_of(job, checksum=[77.0, 78.0])
    job.steps.send()
    job.steps.backward_ends()
    assert job.names() == ["send", "wait", "receive", "wait ends"]
    rows = job.steps.rows
    job.steps.optimizers.accepted()
    assert job.called.pop() == ("require", rows)
    job.steps.finish()
    assert job.steps.optimizers.accepted is None
    assert job.called[4:] == [("settle", rows, 9), ("learn", rows), ("hand over",), ("adopt", ["place"])]


def test_batches_are_fetched_by_the_thread_that_trains(job_of):
    job, caught = job_of(), []

    def fetch():
        with pytest.raises(RuntimeError, match="the balanced loader is read by another thread"):
            job.steps.begin()
        caught.append(True)

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    job.steps.begin()
    assert caught == [True]
