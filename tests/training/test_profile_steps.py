"""A profile: which steps are timed, in which order, and which errors mean that memory does not suffice."""

import math

import pytest

from paceline.training import profile


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (type("OutOfMemoryError", (Exception,), {})("x"), True),
        (RuntimeError("CUDA out of memory."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("not enough memory: you tried"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_memory_that_does_not_suffice_is_no_error(error, memory):
    def made(size, device):
        raise error

    assert profile._is_out_of_memory(error) == memory
    if memory:
        assert math.isnan(profile._median_seconds(made, 8, "cpu", 0, 1))
    else:
        with pytest.raises(
            RuntimeError, match=rf"^make_step\(8, 'cpu'\), or its step, raised {type(error).__name__}: "
        ):
            profile._median_seconds(made, 8, "cpu", 0, 1)


def test_a_profile_times_the_steps_after_the_warm_up_in_rising_order_of_batches(monkeypatch):
    """Steps take the batch times a second, later ones more; the median of the timed ones counts."""
    now, runs, told = [0.0], [], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def made(size, device):
        def step():
            runs.append(size)
            now[0] += size * (1.0 + 10.0 * (runs.count(size) <= 2) + 0.25 * (runs.count(size) - 3))

        return step

    found = profile.profile(made, [4, 2, 4], name="mine", model="net", warmup=2, repeats=3, progress=told.append)
    assert told == [2, 4]
    assert runs == [2] * 5 + [4] * 5
    assert found.to_dict("list") == {
        "source": ["measured"] * 2,
        "device": ["mine"] * 2,
        "model": ["net"] * 2,
        "batch": [2.0, 4.0],
        "seconds": [2.5, 5.0],
        "comm_seconds": [pytest.approx(math.nan, nan_ok=True)] * 2,
        "held": [""] * 2,
    }
    runs.clear()
    plain = profile.profile(made, [3])
    assert runs == [3] * 13
    assert plain["device"].tolist() == ["cpu"]
    assert plain["model"].tolist() == [""]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sizes": []}, r"sizes must be batch sizes of at least 1 sample, got \[\]"),
        ({"sizes": [3, 0]}, r"sizes must be batch sizes of at least 1 sample, got \[3, 0\]"),
        ({"sizes": [1], "warmup": -1}, "warmup must be at least 0 and repeats at least 1, got -1 and 10"),
        ({"sizes": [1], "repeats": 0}, "warmup must be at least 0 and repeats at least 1, got 3 and 0"),
    ],
)
def test_numbers_of_a_profile_that_are_out_of_range_are_refused(arguments, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        profile.profile(lambda size, device: sum, **arguments)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("fits", [True, False])
def test_steps_of_a_device_are_timed_by_its_clock_and_its_memory_is_freed_each_time(monkeypatch, device, fits):
    torch = pytest.importorskip("torch")
    done = []

    def clock(name, seconds):
        return lambda step, where, repeats: done.append((name, where, repeats)) or step() or [seconds] * repeats

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda which: f"name of {which}")
    monkeypatch.setattr(profile.gc, "collect", lambda: done.append("collected"))
    monkeypatch.setattr(profile, "_cpu_seconds", clock("cpu", 0.5))
    monkeypatch.setattr(profile, "_cuda_seconds", clock("cuda", 0.25))

    def made(size, where):
        def step():
            done.append(("step", size, where))
            if not fits:
                raise MemoryError
            sum(range(1000))

        return step

    kind = device.partition(":")[0]
    freed = ["collected"] + ["emptied"] * (device != "cpu")
    if fits:
        found = profile.profile(made, [8], device=device, warmup=1, repeats=3)
        assert found["seconds"].tolist() == [0.5 if device == "cpu" else 0.25]
        assert found["device"].tolist() == ["cpu" if device == "cpu" else "name of cuda:1"]
        assert done == [("step", 8, device), (kind, device, 3), ("step", 8, device), *freed]
    else:
        assert math.isnan(profile._median_seconds(made, 8, device, 1, 3))
        assert done == [("step", 8, device), *freed]


def test_a_device_that_torch_does_not_find_is_refused_before_anything_is_built(monkeypatch):
    torch = pytest.importorskip("torch")
    needed = []
    monkeypatch.setattr(profile, "require", lambda library, **why: needed.append((library, why)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"^device must be available to torch, which finds no CUDA device here: use device='cpu'$"
    ):
        profile.profile(lambda size, device: pytest.fail("it was built"), [8], device="cuda")
    assert needed == [("torch", {"needed_by": "profiling on CUDA", "extra": "torch"})]
    with pytest.raises(TypeError):  # the example needs torch, too
        profile.example("x", "cpu")
    assert needed[1:] == [("torch", {"needed_by": "paceline.training.profile:example", "extra": "torch"})]
