"""Fitted regression trees as plain arrays: saved without pickle, and evaluated for a whole fleet at once.

Axes: W rows to forecast (workers), F inputs, G trees, N nodes of all trees one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

Integers = NDArray[np.int64]

MAX_STEPS = 1000
"""No tree is deeper: each step of a walk costs time, for all workers in every iteration."""


@dataclass(frozen=True, eq=False)
class Trees:
    """The sum of many trees. A leaf points to itself, so that all trees take the same number of steps.

    Parameters
    ----------
    feature_N, threshold_N
        Which input a node looks at, and the largest value that goes left.
    missing_right_N
        Whether a missing input goes right; an infinite threshold separates missing inputs from all others.
    child_N2
        The nodes to the left and to the right.
    value_N
        What a leaf adds to the sum.
    root_G
        The root node of each tree.
    steps, baseline
        Depth of the deepest leaf, and the value the sum starts from: arrays of one number.
    """

    feature_N: Integers
    threshold_N: Array
    missing_right_N: NDArray[np.bool_]
    child_N2: Integers
    value_N: Array
    root_G: Integers
    steps: Integers
    baseline: Array

    @classmethod
    def of(cls, model: HistGradientBoostingRegressor) -> Trees:
        """Take the trees out of a model that scikit-learn fitted."""
        # scikit-learn has no public access to the nodes, hence the private attributes.
        parts = [predictors[0].nodes for predictors in model._predictors]
        nodes = np.concatenate(parts)
        root_G = np.concatenate([[0], np.cumsum([len(part) for part in parts[:-1]])]).astype(np.int64)
        first_N = np.repeat(root_G, [len(part) for part in parts])
        leaf_N = nodes["is_leaf"].astype(bool)
        node_N = np.arange(len(nodes))
        return cls(
            feature_N=np.where(leaf_N, 0, nodes["feature_idx"]).astype(np.int64),
            threshold_N=np.where(leaf_N, np.inf, nodes["num_threshold"]),
            missing_right_N=~leaf_N & ~nodes["missing_go_to_left"].astype(bool),
            child_N2=np.stack([np.where(leaf_N, node_N, first_N + nodes[side]) for side in ("left", "right")], axis=1),
            value_N=np.where(leaf_N, nodes["value"], 0.0),
            root_G=root_G,
            steps=np.array(nodes["depth"].max(), dtype=np.int64),
            baseline=np.asarray(model._baseline_prediction, dtype=np.float64).reshape(()),
        )

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Trees:
        """Rebuild the trees from the result of :meth:`arrays`."""
        trees = cls(**{field.name: np.array(arrays[field.name]) for field in fields(cls)})
        for name in ("steps", "baseline"):  # a model file holds numbers without an axis as arrays of one
            object.__setattr__(trees, name, getattr(trees, name).reshape(()))
        trees._check()
        return trees

    def followed_by(self, others: Trees) -> Trees:
        """Return trees whose sum is that of these and of the others."""
        nodes = len(self.value_N)
        joined = {
            name: np.concatenate([getattr(self, name), getattr(others, name)])
            for name in ("feature_N", "threshold_N", "missing_right_N", "value_N")
        }
        return Trees(
            **joined,
            child_N2=np.concatenate([self.child_N2, others.child_N2 + nodes]),
            root_G=np.concatenate([self.root_G, others.root_G + nodes]),
            steps=np.maximum(self.steps, others.steps),
            baseline=np.asarray(self.baseline + others.baseline),
        )

    def _check(self) -> None:
        """Raise an error unless every node exists that another names, and no walk is longer than a tree is deep."""
        nodes = len(self.value_N)
        shapes = {"feature_N": (nodes,), "threshold_N": (nodes,), "missing_right_N": (nodes,), "child_N2": (nodes, 2)}
        for name, shape in {**shapes, "value_N": (nodes,), "steps": (), "baseline": ()}.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} must have the shape {shape}, got {getattr(self, name).shape}")
        for name, limit in (("feature_N", 1 << 31), ("child_N2", nodes), ("root_G", nodes), ("steps", MAX_STEPS)):
            numbers = getattr(self, name)
            if numbers.dtype.kind not in "iu" or not ((numbers >= 0) & (numbers < limit)).all():
                raise ValueError(f"{name} must hold whole numbers from 0 to {limit - 1}")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(self, inputs_WF: Array) -> Array:
        """Return the sum of the leaves that each row reaches, ``[W]``."""
        gaps = bool(np.isnan(inputs_WF).any())
        rows_W1 = np.arange(len(inputs_WF))[:, None]
        node_WG = np.broadcast_to(self.root_G, (len(inputs_WF), len(self.root_G)))
        for _ in range(self.steps.item()):
            seen_WG = inputs_WF[rows_W1, self.feature_N[node_WG]]
            right_WG = seen_WG > self.threshold_N[node_WG]
            if gaps:
                right_WG |= np.isnan(seen_WG) & self.missing_right_N[node_WG]
            node_WG = self.child_N2.ravel()[2 * node_WG + right_WG]
        return np.asarray(self.baseline + self.value_N[node_WG].sum(axis=1))
