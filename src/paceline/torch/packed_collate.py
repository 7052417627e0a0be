"""Concatenate the samples of a packed micro-batch to one row, with the places where attention begins again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Flatten:
    """Collate function of packed micro-batches: one row of all samples, as ``DataCollatorWithFlattening`` makes it.

    A sample is a mapping with ``input_ids``, and ``labels`` where these differ, or just its tokens. The batch has
    ``input_ids``, ``labels`` and ``position_ids`` of the shape ``[1, tokens]``. The first label of each sample is
    -100, as no token of its own comes before it. A micro-batch without samples is one token without a label.

    Parameters
    ----------
    cu_seqlens
        Whether the batch also has ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k``, with
        which transformers calls variable-length attention.
    shift
        Whether labels are the next tokens, as torchtitan's models take them, in place of those of the same place, which
        models of transformers shift themselves.

    Examples
    --------
    >>> batch = Flatten()([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    >>> batch["position_ids"].tolist(), batch["labels"].tolist()
    ([[0, 1, 2, 0, 1]], [[-100, 6, 7, -100, 9]])
    >>> Flatten(shift=True)([[5, 6, 7], [8, 9]])["labels"].tolist()
    [[6, 7, -100, 9, -100]]
    """

    cu_seqlens: bool = False
    shift: bool = False

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        """Return the batch of these samples."""
        parts = [_tokens_and_labels(sample) for sample in samples]
        if not parts:
            parts = [(torch.zeros(1, dtype=torch.int64), torch.full((1,), -100))]
        lengths = [len(tokens) for tokens, _ in parts]
        row = {
            "input_ids": torch.cat([tokens for tokens, _ in parts]),
            "labels": torch.cat([self._labels(labels) for _, labels in parts]),
            "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        }
        batch: dict[str, Any] = {name: values[None] for name, values in row.items()}
        if self.cu_seqlens:
            ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            batch |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
            batch |= dict.fromkeys(("max_length_q", "max_length_k"), max(lengths))
        return batch

    def _labels(self, labels: torch.Tensor) -> torch.Tensor:
        none = torch.full((1,), -100)
        return torch.cat([labels[1:], none] if self.shift else [none, labels[1:]])


def _tokens_and_labels(sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    fields = sample if isinstance(sample, Mapping) else {"input_ids": sample}
    try:
        tokens = torch.as_tensor(fields["input_ids"], dtype=torch.int64)
        labels = torch.as_tensor(fields.get("labels", tokens), dtype=torch.int64)
        fine = tokens.dim() == 1 and tokens.shape == labels.shape and len(tokens) > 0
    except (KeyError, TypeError, ValueError, RuntimeError):
        fine = False
    if not fine:
        raise TypeError(
            f"pack= joins samples by their input_ids, one number for each token, and labels of the same length, got a "
            f"sample of type {type(sample).__name__}: pass collate_fn=, which makes a micro-batch of a list of samples"
        )
    return tokens, labels
