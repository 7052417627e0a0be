"""All shapes: importing them registers them."""

import shapes_losses
import shapes_models
import shapes_order
import shapes_passes
import shapes_steps
import shapes_terms
import shapes_tokens
import shapes_wrappers

__all__ = [
    "shapes_losses",
    "shapes_models",
    "shapes_order",
    "shapes_passes",
    "shapes_steps",
    "shapes_terms",
    "shapes_tokens",
    "shapes_wrappers",
]
