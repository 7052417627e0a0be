"""Which batch a gradient is of: passes, penalties, dropped steps, gradients by hand."""

from itertools import pairwise

import torch
import torch.distributed as dist
from composed import PLAIN, run_composed
from job import EPOCHS, mse
from shapes_order import begun
from shapes_tokens import Sequences, accumulated, masked_loss, token_loss
from shapes_wrappers import Clicks, Waves
from verdicts import SHAPES, Shape, exact, refused, warned


def shape(name, verdict="exact", says="", ranks=(2,), **parts):
    """Register a loop of these parts; names of parts have no spaces here."""
    run = run_composed(PLAIN | {name.replace("_", " "): value for name, value in parts.items()})
    run.__name__, run.__module__ = name, __name__
    SHAPES.append(Shape(run, verdict, says, ranks))


AFTER_THE_FETCH = {
    "kind": "loss_terms",
    "sizes": "steady",
    "second_pass": "same",
    "backward": "each",
    "fetch": "between passes",
}
SEVERAL = "Several batches are in use at once"

shape("a_second_pass_after_the_next_batch_was_fetched", ranks=(2, 4), **AFTER_THE_FETCH)
shape("a_second_pass_after_the_fetch_with_a_loading_process", **AFTER_THE_FETCH, workers=1)
shape("a_second_pass_over_a_copy_on_a_device_after_the_fetch", **AFTER_THE_FETCH, inputs="copied")
noisy = AFTER_THE_FETCH | {"second_pass": "noise"}
shape("a_second_pass_with_noise_after_the_fetch", "exact, but warned", SEVERAL, ranks=(2, 4), **noisy)
shape("a_second_pass_with_noise_after_two_fetches", "exact, but warned", SEVERAL, **noisy | {"fetch": "two ahead"})
shape(
    "an_encoder_and_a_decoder_apart",
    ranks=(2, 4),
    kind="loss_terms",
    sizes="steady",
    models="apart",
    fetch="before backward",
)
shape("an_output_of_a_class_of_its_own", output="object", accumulate="micro-batches")
shape("an_output_without_a_dictionary", output="slots", kind="loss_terms", accumulate=2)
shape("a_dropped_step_of_counted_terms", kind="sum", accumulate=2, dropped="to none")
shape("a_dropped_step_that_is_set_to_zero", ranks=(2, 4), kind="counted", dropped="to zero")
shape("a_gradient_penalty_of_counted_terms", kind="sum", penalty="slope")
shape("two_backward_passes_over_counted_terms", ranks=(2, 4), kind="sum", second_pass="same", backward="each")
shape("a_loss_of_no_terms_in_a_model_that_returns_it", ranks=(2, 4), kind="loss_terms", output="loss", accumulate=2)
shape("counted_terms_that_are_summed_every_time", kind="counted", accumulate=3, summed="every")
shape("an_evaluation_with_gradients_between_micro_batches", kind="counted", accumulate=2, evaluation="evaluation mode")
shape("a_training_pass_without_a_backward_pass", kind="counted", accumulate=2, evaluation="training mode")
shape(
    "a_weighted_loss_of_two_passes_and_the_next_batch",
    kind="loss",
    sizes="steady",
    second_pass="noise",
    fetch="two ahead",
)
shape("micro_batches_in_a_model_that_returns_its_loss", output="loss", accumulate="micro-batches")
shape("two_models_in_micro_batches", "refused", "takes one model", ranks=(4,), accumulate="micro-batches", models="two")
shape("a_call_of_forward", wrapper="forward")
shape("rows_beside_a_batch", "warned", "rows beside a batch", beside=True)
shape("rows_beside_a_batch_of_summed_terms", "warned", "rows beside a batch", kind="sum", beside=True)
shape("gradients_by_hand_in_every_other_step", "warned", "no backward pass of its model has summed", by_hand="steps")
shape("a_head_with_an_optimizer_of_its_own", "warned", "belong to no attached model", by_hand="head")
shape(
    "rows_that_are_gathered_after_many_scalars", "refused", "all_gather needs the same shape", gathers="rows by torch"
)
shape(
    "a_second_pass_over_a_copy_by_two_models_after_the_fetch",
    "exact, but warned",
    SEVERAL,
    **{"kind": "counted", "sizes": "steady", "workers": 1, "fetch": "between passes", "second_pass": "copy"},
    models="two",
)
shape(
    "two_micro_batches_fetched_ahead",
    "refused",
    "the ranks are not at the same place of the data",
    ranks=(4,),
    accumulate="micro-batches",
    fetch="two ahead",
    skips=True,
)
shape(
    "gradients_by_hand_in_the_first_step_of_a_static_graph",
    "refused",
    "the optimizer steps on gradients of this rank alone",
    ranks=(4,),
    kind="counted",
    wrapper="static graph",
    by_hand="steps",
)


@refused("the optimizer steps on gradients of this rank alone", ranks=(4,))
def steps_between_averages_of_the_model_on_ranks_without_terms(job):
    """Whose gradients are 0."""
    data = Sequences()
    model, loader = job.ddp(job.network()), job.loader(data, loss_terms=data.loss_terms)
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for inputs, labels, _ in loader:
        with job.no_sync(model):
            token_loss(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.data = job.all_reduce(parameter.data) / job.world_size


@refused("one backward pass covers two batches")
def a_refusal_that_one_rank_alone_has_cause_for(job):
    """Both ranks compute two batches a step, and the last rank has one backward pass for both, but for the first step.

    In that one torch builds its buckets, for which a rank waits that hears of the refusal late, as on a device.
    """
    model, loader = job.ddp(job.network()), job.loader(accumulate=2)
    job.attach(model, loader, loss_terms=lambda batch: len(batch[0]))
    batches, optimizer = (batch for _ in range(5) for batch in loader), job.sgd(model)
    for step, ((inputs, targets, _), (others, wanted, _)) in enumerate(zip(batches, batches, strict=False)):
        apart = job.rank == 0 or step == 0
        with job.no_sync(model):
            one = mse(model(inputs), targets)
            if apart:
                one.backward()
        two = mse(model(others), wanted)
        (two if apart else one + two).backward()
        optimizer.step()
        optimizer.zero_grad()


@refused("the loss given to balance.scale() is of two batches")
def a_scaled_loss_of_two_batches_on_one_rank(job):
    """Both ranks compute two batches, and the last rank scales one loss of both."""
    model, loader = job.ddp(job.network()), job.loader()
    balance = job.attach(model, loader, loss="scaled")
    batches = list(loader)
    for (inputs, targets, _), (others, wanted, _) in pairwise(batches):
        one, two = mse(model(inputs), targets), mse(model(others), wanted)
        (balance.scale(one + two) if job.rank else balance.scale(one) + balance.scale(two)).backward()


@refused("all_gather needs the same shape")
def rows_of_the_last_batch_after_the_next_was_asked_for(job):
    model, loader, optimizer = begun(job)
    batches = iter(loader)
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        rows = model(batch[0])
        if following is None:
            dist.all_gather([torch.empty_like(rows) for _ in range(2)], rows.detach())
        mse(rows, batch[1]).backward()
        optimizer.step()
        batch = following


shape(
    "copies_of_as_many_samples_as_features_after_skipped_batches",
    "exact, but warned",
    SEVERAL,
    ranks=(4,),
    accumulate=3,
    inputs="copied",
    dropped="to zero",
)


@refused("and gather does too")
def rows_gathered_on_one_rank(job):
    model, loader, optimizer = begun(job)
    for inputs, targets, _ in loader:
        rows = model(inputs)
        dist.gather(rows.detach(), [torch.empty_like(rows) for _ in range(2)] if dist.get_rank() == 0 else None)
        mse(rows, targets).backward()
        optimizer.step()


@exact
def a_static_graph_with_sparse_gradients_and_counted_terms(job):
    model, loader = job.ddp(Clicks(job.network()), static_graph=True), job.loader()
    job.attach(model, loader, loss_terms=lambda batch: len(batch[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            mse(model(inputs), targets).backward()
            optimizer.step()


def counted_waves(job, **options):
    """Train complex parameters by a loss over tokens of which a rank may have none."""
    model, loader = job.ddp(Waves(), **options), job.loader(Sequences())
    job.attach(model, loader, loss_terms=lambda batch: (batch[1] >= 0).sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            masked_loss(model(inputs), labels).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def complex_parameters_and_counted_terms(job):
    counted_waves(job)


@exact(ranks=(2, 4))
def complex_parameters_of_accumulated_terms(job):
    accumulated(job, masked_loss, network=Waves())


@exact(ranks=(2, 4))
def a_static_graph_with_complex_parameters_and_counted_terms(job):
    counted_waves(job, static_graph=True)


@exact
def another_model_after_a_refusal(job):
    if not job.alone:
        other = torch.nn.parallel.DistributedDataParallel(job.network())
        job.loaders, kept = [], job.loaders
        loader = job.loader()
        job.attach(other, loader, loss_terms=lambda batch: len(batch[0]))
        job.loaders = kept
        for inputs, _, _ in loader:
            try:
                (
                    other(inputs).sum() + other(torch.zeros(101, 6, dtype=torch.float64, device=inputs.device)).sum()
                ).backward()
            except RuntimeError:
                break
        torch.manual_seed(0)
    network = job.network()
    model, loader, optimizer = job.ddp(network), job.loader(), None
    job.attach(model, loader)
    optimizer = job.sgd(model)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = mse(model(inputs), targets)
            job.all_reduce(loss)
            loss.backward()
            optimizer.step()


@warned("grow with its number of samples")
def a_summed_loss_that_is_accumulated(job):
    """Ten steps of two micro-batches."""
    model, loader = job.ddp(job.network()), job.loader(accumulate=2)
    job.attach(model, loader)
    optimizer = job.sgd(model, rate=0.001)
    for _ in range(5):
        for number, (inputs, targets, _) in enumerate(loader, 1):
            last = number % 2 == 0 or number == len(loader)
            with job.no_sync(model, last):
                ((model(inputs) - targets).square().sum() * job.world_size / 100 / 2).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
