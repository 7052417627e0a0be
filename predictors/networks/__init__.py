"""Networks: trained by torch, served by numpy."""

from paceline.predictors.networks.gated import GatedNARX
from paceline.predictors.networks.narx import NARX
from paceline.predictors.networks.neural import Training
from paceline.predictors.networks.recurrent import LSTM, SimpleRNN

__all__ = ["LSTM", "NARX", "GatedNARX", "SimpleRNN", "Training"]
