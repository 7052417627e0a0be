"""ARIMA with drivers: the predictor, its estimation from traces, and its Kalman filter."""

from paceline.predictors.arima.model import ARIMA

__all__ = ["ARIMA"]
