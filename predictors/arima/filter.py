"""ARIMA as a state space, and its Kalman filter over a whole fleet at once.

All variances are in units of the innovations' variance, so the scale of the data does not matter.
Axes: W workers, P autoregressive lags, Q moving-average lags, S states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array


@dataclass(frozen=True, eq=False)
class StateSpace:
    """ARIMA in Harvey's form: first the states that differencing removed, then the states of the ARMA.

    The value is ``design . state``; the next state is ``transition @ state + selection * innovation``.
    """

    transition_WSS: Array
    selection_WS: Array
    design_S: Array
    start_WSS: Array
    """Covariance of the first state: stationary for the ARMA, diffuse for the rest."""

    def filtered(self, state_WS: Array, covariance_WSS: Array, value_W: Array) -> tuple[Array, Array]:
        """Return the next state and its covariance after this value; NaN means no value, so only time passes."""
        seen_W = np.isfinite(value_W)
        value_covariance_WS = covariance_WSS @ self.design_S
        variance_W = value_covariance_WS @ self.design_S
        gain_WS = np.where(seen_W[:, None], value_covariance_WS / variance_W[:, None], 0.0)
        innovation_W = np.where(seen_W, value_W - state_WS @ self.design_S, 0.0)
        known_WSS = covariance_WSS - gain_WS[:, :, None] * value_covariance_WS[:, None, :]
        moved_WSS = self.transition_WSS @ known_WSS @ self.transition_WSS.transpose(0, 2, 1)
        noise_WSS = self.selection_WS[:, :, None] * self.selection_WS[:, None, :]
        return self._moved(state_WS + gain_WS * innovation_W[:, None]), moved_WSS + noise_WSS

    def ahead(self, state_WS: Array, horizon: int) -> Array:
        """Return the value expected ``horizon`` iterations ahead; at 1 it is the iteration of this state."""
        for _ in range(horizon - 1):
            state_WS = self._moved(state_WS)
        return np.asarray(state_WS @ self.design_S)

    def _moved(self, state_WS: Array) -> Array:
        return np.asarray((self.transition_WSS @ state_WS[:, :, None])[:, :, 0])


def states(order: tuple[int, int, int]) -> int:
    """Return the number of states of an ARIMA of this order (p, d, q).

    >>> states((2, 1, 1))
    3
    """
    p, d, q = order
    return d + max(p, q + 1)


def state_space(ar_WP: Array, ma_WQ: Array, differences: int) -> StateSpace:
    """Return the state spaces of ARIMA models of one order, one for each row of coefficients.

    The signs are those of statsmodels: ``y[t] = ar . y[t-1, ...] + e[t] + ma . e[t-1, ...]``.

    >>> state_space(np.array([[0.5]]), np.zeros((1, 0)), 0).start_WSS  # 1 / (1 - 0.5**2)
    array([[[1.33333333]]])
    """
    count, p, q = len(ar_WP), ar_WP.shape[1], ma_WQ.shape[1]
    size = states((p, differences, q))
    transition_WSS = np.zeros((count, size, size))
    transition_WSS[:, :differences, : differences + 1] = np.triu(np.ones((differences, differences + 1)))
    transition_WSS[:, differences : differences + p, differences] = ar_WP
    transition_WSS[:, range(differences, size - 1), range(differences + 1, size)] = 1.0
    selection_WS = np.zeros((count, size))
    selection_WS[:, differences] = 1.0
    selection_WS[:, differences + 1 : differences + 1 + q] = ma_WQ
    start_WSS = np.zeros((count, size, size))
    # as unknown as statsmodels' approximate diffuse start, in units of the innovations' variance
    start_WSS[:, range(differences), range(differences)] = 1e6
    start_WSS[:, differences:, differences:] = _stationary(
        transition_WSS[:, differences:, differences:], selection_WS[:, differences:]
    )
    design_S = (np.arange(size) <= differences).astype(np.float64)
    return StateSpace(transition_WSS, selection_WS, design_S, start_WSS)


def _stationary(transition_WSS: Array, selection_WS: Array) -> Array:
    """Solve ``covariance = T covariance T' + R R'`` for each worker, as one linear system of S * S unknowns."""
    count, size = selection_WS.shape
    # vec(T C T') = (T kron T) vec(C) turns the matrix equation into an ordinary linear system.
    kron = np.einsum("wij,wkl->wikjl", transition_WSS, transition_WSS).reshape(count, size**2, size**2)
    noise = np.einsum("wi,wj->wij", selection_WS, selection_WS).reshape(count, size**2, 1)
    return np.asarray(np.linalg.solve(np.eye(size**2) - kron, noise).reshape(count, size, size))
