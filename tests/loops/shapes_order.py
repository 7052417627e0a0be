"""Fetching batches: prefetching, skipping, shuffling."""

import threading
from itertools import islice

import torch
from composed import composed_shapes
from job import EPOCHS, GLOBAL_BATCH, Samples, mse
from verdicts import exact, refused, warned

shape = composed_shapes(__name__)


def begun(job, **options):
    """Model, loader and optimizer of a plain job."""
    model, loader = job.ddp(job.network()), job.loader(**options)
    job.attach(model, loader)
    return model, loader, job.sgd(model)


def step(model, optimizer, batch):
    inputs, targets, _ = batch
    optimizer.zero_grad()
    mse(model(inputs), targets).backward()
    optimizer.step()


@exact(ranks=(2, 4))
def a_plain_loop(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)


shape("loading_processes", workers=2)
shape("the_next_batch_is_fetched_before_backward", ranks=(2, 4), fetch="before backward")
shape("the_next_batch_is_fetched_before_forward", fetch="before forward")
shape("two_batches_are_fetched_ahead", fetch="two ahead")
shape("fetching_ahead_while_gradients_accumulate", accumulate=2, fetch="before backward")
shape("fetching_ahead_with_a_scaled_loss", kind="scaled", fetch="before backward")


@exact
def two_forward_passes_and_then_their_backward_passes(job):
    model, loader, optimizer = begun(job, accumulate=3)
    for _ in range(EPOCHS):
        batches = iter(loader)
        while True:
            first, second, third = next(batches, None), next(batches, None), next(batches, None)
            if third is None:
                break
            with job.no_sync(model):
                losses = [mse(model(inputs), targets) for inputs, targets, _ in (first, second)]
                for loss in losses:
                    loss.backward()
            mse(model(third[0]), third[1]).backward()
            optimizer.step()
            optimizer.zero_grad()


shape("a_look_at_a_batch_before_every_epoch", peek=True)
shape("a_look_at_a_batch_with_loading_processes", peek=True, workers=2)


@exact
def an_epoch_left_early(job):
    model, loader, optimizer = begun(job)
    for _ in range(2 * EPOCHS):
        for number, batch in enumerate(loader):
            if number == 3:
                break
            step(model, optimizer, batch)


@exact
def an_endless_iterator(job):
    model, loader, optimizer = begun(job)
    batches = iter(loader)
    for _ in range(10):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        step(model, optimizer, batch)


shape("batches_that_are_skipped", skips=True)


@refused("write loss = balance.scale(loss, count)")
def the_loader_in_a_cycle(job):
    """Every batch comes again and again, long after the loader's loop is over."""
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)
    batches = list(loader)
    for batch in [*batches, *batches, *batches]:
        step(model, optimizer, batch)


@warned("skip only an epoch's last, incomplete batch")
def batches_of_another_size_are_skipped(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        for batch in loader:
            if len(batch[0]) == GLOBAL_BATCH // job.world_size:
                step(model, optimizer, batch)


shape("evaluation_in_between", evaluation="without gradients")


@exact
def a_look_at_the_dataset_on_one_rank(job):
    model, loader, optimizer = begun(job)
    for _ in range(EPOCHS):
        if job.rank == 0:
            assert len(loader.dataset[0]) == 3
        for batch in loader:
            step(model, optimizer, batch)


@refused("the ranks are not at the same place in the data")
def a_look_at_a_batch_on_one_rank(job):
    model, loader, optimizer = begun(job)
    if job.rank == 0:
        next(iter(loader))
    for batch in loader:
        step(model, optimizer, batch)


@exact
def ranks_with_other_numbers_of_loading_processes(job):
    model, loader, optimizer = begun(job, num_workers=1 + job.rank)
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)


@refused("the ranks must agree on the num_workers above 0 of the loader")
def loading_processes_on_one_rank_only(job):
    begun(job, num_workers=job.rank)


@refused("the ranks must agree on the shuffle of the loader")
def ranks_that_shuffle_differently(job):
    begun(job, shuffle=job.rank == 0)


@refused("the ranks must agree on the drop_last of the loader")
def ranks_that_treat_the_last_batch_differently(job):
    begun(job, drop_last=job.rank == 0)


@exact
def training_goes_on_in_evaluation_mode(job):
    """As in scripts that forget train() after validation, or keep what layers have learned of the data."""
    model, loader, optimizer = begun(job)
    held_out = Samples()
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)
        model.eval()
        mse(model(held_out.inputs), held_out.targets)  # with gradients that nobody uses


@exact
def a_sampler_of_the_users_own(job):
    model, loader, optimizer = begun(job, sampler=torch.utils.data.SequentialSampler(range(96)))
    for _ in range(EPOCHS):
        for batch in loader:
            step(model, optimizer, batch)


@refused("the ranks had different samples")
def a_sampler_that_is_not_seeded(job):
    chance = torch.Generator().manual_seed(job.rank)
    model, loader, optimizer = begun(job, sampler=torch.utils.data.RandomSampler(range(96), generator=chance))
    for batch in loader:
        step(model, optimizer, batch)


@warned("The ranks have different data")
def a_part_of_the_data_on_each_rank(job):
    own = torch.utils.data.Subset(Samples(), range(job.rank, 102, job.world_size))
    model, loader, optimizer = begun(job, dataset=own)
    for batch in loader:
        step(model, optimizer, batch)


@warned("pass random_split a generator with the same seed on every rank")
def a_random_split_without_a_generator(job):
    torch.manual_seed(job.rank)  # as where no seed is set
    own, _ = torch.utils.data.random_split(Samples(), [0.9, 0.1])
    model, loader, optimizer = begun(job, dataset=own)
    for batch in loader:
        step(model, optimizer, batch)


@refused("shuffle")
def an_option_that_is_misspelt(job):
    begun(job, shufle=True)


@refused("map-style")
def a_stream_of_samples(job):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(100))

    begun(job, dataset=Stream())


@refused("this loop over the loader has ended")
def loops_within_loops(job):
    model, loader, optimizer = begun(job)
    for batch in loader:
        step(model, optimizer, batch)
        for other in loader:
            step(model, optimizer, other)
            break


@refused("read by another thread")
def batches_fetched_by_a_thread(job):
    model, loader, optimizer = begun(job)
    errors = []

    def fetch():
        try:
            for _ in loader:
                pass
        except RuntimeError as error:
            errors.append(error)

    for batch in loader:
        step(model, optimizer, batch)
        break
    fetching = threading.Thread(target=fetch)
    fetching.start()
    fetching.join()
    raise errors[0]


@exact
def a_resume_within_the_process(job):
    model, loader = job.ddp(job.network()), job.loader(num_workers=1)
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    for number, batch in enumerate(loader):
        step(model, optimizer, batch)
        if number == 2:
            break
    if not job.alone:
        balance.load_state_dict(balance.state_dict())
    for batch in loader:
        step(model, optimizer, batch)


@warned("fetched but not computed")
def a_checkpoint_while_a_batch_is_fetched_ahead(job):
    model, loader = job.ddp(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    batches = iter(loader)
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        step(model, optimizer, batch)
        batch = following
        if not job.alone:
            balance.state_dict()


@refused("the ranks' shares of this step sum to")
def batches_computed_in_another_order_on_one_rank(job):
    """When a rank reports must not depend on what it has seen of its batches."""
    model, loader = job.ddp(job.network()), job.loader()
    balance, optimizer = job.attach(model, loader), job.sgd(model)
    batches = iter(loader)
    while len(ahead := list(islice(batches, 2))) == 2:
        step(model, optimizer, ahead.pop(0))
        ahead.extend(islice(batches, 1))  # of other sizes than the one before it, as a step came between
        for batch in reversed(ahead) if job.rank == 0 else ahead:
            step(model, optimizer, batch)
    if not job.alone:
        balance.state_dict()
