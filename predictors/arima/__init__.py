"""ARIMA with covariates: the predictor, its estimation from traces, and its Kalman filter."""

from paceline.predictors.arima.arima import ARIMA

__all__ = ["ARIMA"]
