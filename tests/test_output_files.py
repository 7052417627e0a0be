"""Files that commands write: through links, to devices, under the umask, and nothing of the user's is overwritten."""

import os
import stat

import pytest
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.predictors import EWMA
from paceline.training import load_model, save_model


def test_output_follows_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "model.safetensors"
    link.symlink_to(tmp_path / "real" / "a.safetensors")
    save_model(EWMA(), link)
    assert link.is_symlink()
    assert repr(load_model(tmp_path / "real" / "a.safetensors")) == repr(EWMA())


def test_output_to_a_pipe_keeps_the_pipe(tmp_path):
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"model\.safetensors is not a regular file"):
        save_model(EWMA(), pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_output_respects_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        save_model(EWMA(), tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == mode


OUTPUTS = {
    ".safetensors": ["fit", "ewma", "-o"],
    ".html": ["evaluate", "ewma", "--report"],
    ".parquet": ["data", "load", "digits-cnn-bursty", "-o"],
    ".csv": ["data", "load", "digits-cnn-bursty", "-o"],
}


@pytest.mark.parametrize("suffix", OUTPUTS)
def test_output_is_tried_before_the_work(tmp_path, monkeypatch, suffix):
    for work in ("load_predictor", "find_traces"):
        monkeypatch.setattr(f"paceline.cli.options.{work}", lambda *_, **__: pytest.fail("the work began"))
    (tmp_path / f"out{suffix}").mkdir()
    done = CliRunner().invoke(cli.app, [*OUTPUTS[suffix], str(tmp_path / f"out{suffix}")])
    assert isinstance(done.exception, OSError)
    assert f"out{suffix}" in str(done.exception)


def test_error_of_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match=r"cannot write .*model\.safetensors: No space left") as refused:
        save_model(EWMA(), tmp_path / "model.safetensors")
    assert ".paceline-" not in str(refused.value)


def test_fit_keeps_the_model_when_the_disk_is_full(tmp_path, monkeypatch):
    import paceline.training as training

    real, asked = training.save_model, []

    def full_at_first(model, path, **about):
        asked.append(path)
        if len(asked) == 1:
            raise OSError(28, f"cannot write {path}: No space left on device")
        return real(model, path, **about)

    monkeypatch.setattr(training, "save_model", full_at_first)
    done = CliRunner().invoke(cli.app, ["fit", "ewma", "-o", str(tmp_path / "model.safetensors")])
    assert done.exit_code == 0
    assert load_model(asked[-1]).smoothing > 0
    assert str(asked[-1]) in done.output


@pytest.mark.processes
def test_record_of_nothing_does_not_block_the_next_try(tmp_path):
    for _ in range(2):
        done = CliRunner().invoke(cli.app, ["record", "-o", str(tmp_path), "--", "true"])
        assert "no iteration was recorded" in str(done.exception)
