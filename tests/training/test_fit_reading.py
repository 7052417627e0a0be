"""A fit that is killed while it reads does not read, or make windows of, the same files again."""

import pytest
from fit_cases import folder_of, learnt, networks, wavy

from paceline.datasets.readers import reader_registry as registry
from paceline.training import fit, sources


class StopHereError(Exception):
    pass


def interrupted_at(stage, done):
    def tell(moment):
        if moment.stage == stage and moment.done >= done:
            raise StopHereError

    return tell


@pytest.fixture
def reads(monkeypatch):
    """The files that are read, in order; none is remembered in memory, as files of 2 GB would not be."""
    names = []

    def counted(chosen, files, **options):
        names.append(files[0].name)
        yield from registry.read_job(chosen, files, **options)

    monkeypatch.setattr(sources, "read_job", counted)
    monkeypatch.setattr(sources, "REMEMBERED", 0)
    return names


@pytest.mark.parametrize("memory", [1 << 20, 4000], ids=["memory", "files"])
@pytest.mark.parametrize("predictor", networks(), ids=lambda p: type(p).__name__)
@pytest.mark.slow
def test_a_fit_interrupted_while_it_reads_goes_on_after_the_last_file(tmp_path, predictor, memory, reads):
    folder = folder_of(tmp_path / "jobs", 6)
    uninterrupted = learnt(fit(predictor, folder, memory=memory))
    at = [("read", 4), ("read", 6), ("windows", 3), ("windows", 5), ("training", 1)]
    where = {"memory": memory, "checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    again = []
    for stage, done in at:
        reads.clear()
        with pytest.raises(StopHereError):
            fit(predictor, folder, progress=interrupted_at(stage, done), **where)
        again.append([int(name[3:5]) for name in reads])
    assert again[0] == [0, 1, 2, 3]
    assert again[1] == [3, 4, 5]  # the file at which it was interrupted is read once more
    assert again[2] == [5, 0, 1, 2]
    assert again[3] == [5, 3, 4]
    assert again[4] == [5, 5]
    reads.clear()
    assert learnt(fit(predictor, folder, **where)) == uninterrupted
    assert reads == ["job05.parquet"]
    assert not list((tmp_path / "fit").rglob("reading*"))


@pytest.mark.slow
def test_a_file_that_changed_since_is_read_again(tmp_path, reads):
    folder, narx = folder_of(tmp_path / "jobs", 4), networks()[0]
    where = {"checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    for stage, done in (("read", 3), ("windows", 3)):
        with pytest.raises(StopHereError):
            fit(narx, folder, progress=interrupted_at(stage, done), **where)
        wavy(9).save(folder / "job00.parquet")
    assert learnt(fit(narx, folder, **where)) == learnt(fit(narx, folder))


@pytest.mark.slow
def test_held_out_workers_of_another_call_begin_anew(tmp_path):
    folder, narx = folder_of(tmp_path / "jobs", 3), networks()[0]
    where = {"checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    with pytest.raises(StopHereError):
        fit(narx, folder, progress=interrupted_at("windows", 2), **where)
    assert learnt(fit(narx, folder, hold_out=["b"], **where)) == learnt(fit(narx, folder, hold_out=["b"]))


@pytest.mark.slow
def test_a_torn_note_or_shard_only_costs_time(tmp_path):
    folder, narx = folder_of(tmp_path / "jobs", 3), networks()[0]
    uninterrupted = learnt(fit(narx, folder))
    for name in ("survey.json", "state.json", "kind.npy", "000.records"):
        where = {"checkpoint": tmp_path / name, "checkpoint_seconds": 0.0}
        with pytest.raises(StopHereError):
            fit(narx, folder, progress=interrupted_at("windows", 3), **where)
        (torn,) = (tmp_path / name).rglob(name)
        torn.write_bytes(torn.read_bytes()[:20])
        assert learnt(fit(narx, folder, **where)) == uninterrupted
