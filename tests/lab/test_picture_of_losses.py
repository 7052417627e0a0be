"""How the figure of a live experiment looks: its size, lines, colours and words."""

import pytest
from test_outcomes import made

from paceline.lab.experiment import EQUAL
from paceline.lab.experiment.figure import COLOURS, loss_figure

matplotlib_figure = pytest.importorskip("matplotlib.figure")


def test_equal_batches_are_a_thick_black_line_behind_thin_coloured_ones(tmp_path, monkeypatch):
    figures, asked = [], []
    monkeypatch.setattr(matplotlib_figure.Figure, "savefig", lambda figure, path, **how: figures.append((figure, how)))
    monkeypatch.setattr("paceline.lab.experiment.figure.require", lambda *told, **named: asked.append((told, named)))
    loss_figure(made(5, schemes=("ewma", "auto"), rounds=1, contention="quota"), str(tmp_path / "losses.pdf"))
    assert asked == [(("matplotlib",), {"needed_by": "loss_figure", "extra": "plot"})]
    ((figure, how),) = figures
    assert how == {"format": "pdf"}
    assert (figure.get_size_inches().tolist(), figure.dpi) == ([9.0, 3.6], 120)
    assert figure.get_layout_engine().__class__.__name__ == "ConstrainedLayoutEngine"
    over_samples, over_time = figure.axes
    assert over_samples.get_shared_y_axes().joined(over_samples, over_time)
    assert not over_samples.get_shared_x_axes().joined(over_samples, over_time)
    words = [(axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) for axes in figure.axes]
    assert words == [
        ("thousand samples", "loss", "after equal samples"),
        ("seconds of training", "", "after equal time"),
    ]
    assert over_samples.get_legend() is None
    assert not over_time.get_legend().get_frame_on()
    for axes in figure.axes:
        drawn = [(line.get_label(), line.get_color(), line.get_linewidth()) for line in axes.lines]
        assert drawn == [(EQUAL, "#000000", 2.5), ("ewma", COLOURS[0], 1.2), ("auto", COLOURS[1], 1.2)]
    assert figure.get_suptitle() == "rank 1 has a quota of 50% of a core, all the time"
    assert len({colour.lower() for colour in COLOURS}) == 6
