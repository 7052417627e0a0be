"""Several passes, penalties, dropped steps, and gradients computed manually."""

import torch
import torch.distributed as dist
from composed import composed_shapes
from job import EPOCHS, Sequences, mse
from shapes_order import begun
from shapes_tokens import accumulated, counted, masked_loss, token_loss
from shapes_wrappers import Clicks, Waves
from verdicts import exact, refused, warned

shape = composed_shapes(__name__)

AFTER_THE_FETCH = {"sizes": "steady", "second_pass": "same", "backward": "one", "fetch": "between passes"}

shape("a_second_pass_after_the_next_batch_was_fetched", ranks=(2, 4), **AFTER_THE_FETCH)
shape("a_second_pass_after_the_fetch_with_a_loading_process", **AFTER_THE_FETCH, workers=1)
shape("a_second_pass_over_a_copy_after_the_fetch", **AFTER_THE_FETCH, inputs="copied")
shape("a_second_pass_with_noise_after_the_fetch", ranks=(2, 4), **AFTER_THE_FETCH | {"second_pass": "noise"})
shape("a_second_pass_with_noise_after_two_fetches", **AFTER_THE_FETCH | {"second_pass": "noise", "fetch": "two ahead"})
shape("an_encoder_and_a_decoder_apart", ranks=(2, 4), models="apart", fetch="before backward")
shape("an_encoder_and_a_decoder_of_tokens", ranks=(2, 4), kind="tokens", models="apart", fetch="before backward")
shape("an_output_of_a_class_of_its_own", output="object", accumulate="micro-batches")
shape("an_output_without_a_dictionary", output="slots", kind="tokens", accumulate=2)
shape("a_dropped_step_of_tokens", kind="tokens", accumulate=2, dropped="to none")
shape("a_dropped_step_of_tokens_that_is_set_to_zero", ranks=(2, 4), kind="tokens", dropped="to zero")
shape("a_dropped_step", accumulate=2, dropped="to none")
shape("a_gradient_penalty_of_tokens", kind="tokens", penalty="slope")
shape("two_backward_passes_over_tokens", ranks=(2, 4), kind="tokens", second_pass="same", backward="each")
shape("a_loss_of_no_terms_in_a_model_that_returns_it", ranks=(2, 4), kind="tokens", output="loss", accumulate=2)
shape("an_evaluation_with_gradients_between_micro_batches", kind="tokens", accumulate=2, evaluation="evaluation mode")
shape("a_training_pass_without_a_backward_pass", accumulate=2, evaluation="training mode")
shape("micro_batches_in_a_model_that_returns_its_loss", output="loss", accumulate="micro-batches")
shape("two_models_in_micro_batches", "refused", "take one model", ranks=(4,), accumulate="micro-batches", models="two")
shape("a_call_of_forward", wrapper="forward")
shape("micro_batches_of_a_fully_sharded_model", ranks=(2, 4), wrapper="FSDP2", accumulate=3)
shape("a_sum_averaged_plainly_in_a_fully_sharded_model", ranks=(2, 4), wrapper="FSDP2", kind="plain sum")
shape("parts_of_three_batches_summed_after_each", rows="parts", line="scale", accumulate=3, summed="every")
LINE = "write loss = balance.scale(loss, count)"
shape("rows_beside_a_batch_in_a_pass_of_their_own", "refused", LINE, beside=True)
BY_HAND = "call loss.backward() instead of torch.autograd.grad"
shape("gradients_by_hand_in_every_other_step", "refused", BY_HAND, by_hand="steps")
shape("a_head_with_an_optimizer_of_its_own", by_hand="head")
shape(
    "rows_that_are_gathered_after_many_scalars",
    "refused",
    "all_gather and gather need the same shape",
    gathers="rows by torch",
)
shape(
    "a_second_pass_over_a_copy_by_two_models_after_the_fetch",
    sizes="steady",
    workers=1,
    fetch="between passes",
    second_pass="copy",
    models="two",
)
shape(
    "gradients_by_hand_in_the_first_step_of_a_static_graph",
    "refused",
    BY_HAND,
    ranks=(4,),
    wrapper="static graph",
    by_hand="steps",
)


@refused("the optimizer steps on gradients of this rank alone", ranks=(4,))
def steps_between_averages_of_the_model_on_ranks_without_terms(job):
    """Whose gradients are 0."""
    data = Sequences()
    model, loader = job.ddp(job.network()), job.loader(data)
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for inputs, labels, _ in loader:
        with job.no_sync(model):
            balance.scale(token_loss(model(inputs), labels), counted(labels)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.data = job.all_reduce(parameter.data) / job.world_size


@refused("write loss = balance.scale(loss, count)")
def a_refusal_that_one_rank_alone_has_cause_for(job):
    """Both ranks compute two batches a step, and the last rank has one backward pass for both, but for the first step.

    In that one torch builds its buckets, for which a rank waits that hears of the refusal late, as on a device.
    """
    model, loader = job.ddp(job.network()), job.loader()
    job.attach(model, loader)
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


@refused("all_gather and gather need the same shape")
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


@refused("and gather need the same shape")
def rows_gathered_on_one_rank(job):
    model, loader, optimizer = begun(job)
    for inputs, targets, _ in loader:
        rows = model(inputs)
        dist.gather(rows.detach(), [torch.empty_like(rows) for _ in range(2)] if dist.get_rank() == 0 else None)
        mse(rows, targets).backward()
        optimizer.step()


@exact
def a_static_graph_with_sparse_gradients(job):
    model, loader = job.ddp(Clicks(job.network()), static_graph=True), job.loader()
    balance, optimizer = job.attach(model, loader), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            balance.scale(mse(model(inputs), targets), len(inputs)).backward()
            optimizer.step()


def waves_of_tokens(job, **options):
    """Train complex parameters by a loss over tokens of which a rank may have none."""
    model, loader = job.ddp(Waves(), **options), job.loader(Sequences())
    balance, optimizer = job.attach(model, loader), torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            balance.scale(masked_loss(model(inputs), labels), counted(labels)).backward()
            optimizer.step()


@exact(ranks=(2, 4))
def complex_parameters_and_tokens(job):
    waves_of_tokens(job)


@exact(ranks=(2, 4))
def complex_parameters_of_accumulated_tokens(job):
    accumulated(job, masked_loss, network=Waves())


@exact(ranks=(2, 4))
def a_static_graph_with_complex_parameters_and_tokens(job):
    waves_of_tokens(job, static_graph=True)


@exact
def another_model_after_a_refusal(job):
    if not job.alone:
        other = torch.nn.parallel.DistributedDataParallel(job.network())
        job.loaders, kept = [], job.loaders
        loader = job.loader()
        job.attach(other, loader)
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
