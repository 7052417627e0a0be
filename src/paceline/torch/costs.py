"""One number for each sample of a dataset: given as an array, read from a column, or computed. Axis: N samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline.coordinator.work import sum_of_products
from paceline.solver import Assignment, Packing, assign, pack

Numbers = ArrayLike | str | Callable[[Any], float]
"""An array of one number for each sample, the name of a column, or what returns the number of a sample."""


def read_numbers(dataset: Any, source: Numbers, argument_name: str, *, allow_zeros: bool = False) -> Array:
    """Return the numbers of all samples, or raise an error: for a column of lists, their lengths."""
    if isinstance(source, str):
        values = _read_column(dataset, source, argument_name)
    elif callable(source):
        values = np.array([source(dataset[number]) for number in range(len(dataset))], dtype=np.float64)
    else:
        values = np.array(source, dtype=np.float64)
    if values.shape != (len(dataset),):
        raise ValueError(
            f"{argument_name} must hold one number for each of the {len(dataset)} samples, got the shape {values.shape}"
        )
    require_in_range(values, argument_name, allow_zeros=allow_zeros)
    values.flags.writeable = False
    return values


def require_in_range(
    values_N: Array, name: str, *, first_index: int = 0, suffix: str = "", allow_zeros: bool = False
) -> None:
    """Refuse numbers that are not finite and above 0, or with ``allow_zeros`` not below; the sample is named.

    ``first_index`` is the number of the first sample, and ``suffix`` says of what.
    """
    fine = np.isfinite(values_N) & ((values_N > 0) | (allow_zeros & (values_N == 0)))
    if not fine.all():
        place, wanted = int(np.argmin(fine)), "not negative" if allow_zeros else "above 0"
        raise ValueError(
            f"{name} must be finite and {wanted}, got {values_N[place]:g} for sample {first_index + place}{suffix}"
        )


def _read_column(dataset: Any, column: str, argument_name: str) -> Array:
    if not hasattr(dataset, "with_format") or column not in getattr(dataset, "column_names", ()):
        raise TypeError(
            f"{argument_name}={column!r} names a column, which {type(dataset).__name__} does not have: pass one number "
            "for each sample, or a function of a sample"
        )
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported, so no type checker sees them

    values = dataset.with_format("arrow").select_columns([column])[:][column].combine_chunks()
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        return np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.array(pc.list_value_length(values), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of samples: the loader draws the same global batches, but divides them so that ranks end together.

    ``lengths`` and ``cost`` are arrays of N numbers, names of a dataset's columns, or functions of a sample; for a
    stream functions.

    Parameters
    ----------
    lengths
        Length of each sample, or of each of its parts, such as ``{"image": ..., "text": ...}``; what a length costs is
        learned while training, for each part by itself, unless ``cost`` says.
    cost
        Cost of each sample, used as it is, in any unit.
    cap
        Most tokens of a rank in a batch, or of a micro-batch with ``pack=``, in units of ``lengths``, or else of
        ``cost``: its memory.
    global_tokens
        Tokens of a global batch, in place of ``global_batch``: each takes as many samples as fit. Not for streams.
    padded
        Whether a rank's samples are padded to its longest.

    Raises
    ------
    ValueError
        If a number is out of range, or one is given that only makes sense beside another.

    Examples
    --------
    >>> Costs(cap=4096)
    Traceback (most recent call last):
    ValueError: Costs needs lengths= or cost=
    """

    lengths: Numbers | Mapping[str, Numbers] | None = None
    cost: Numbers | None = None
    cap: float | None = None
    global_tokens: float | None = None
    padded: bool = False

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if self.cost is None and self.lengths is None:
            raise ValueError("Costs needs lengths= or cost=")
        for name, value in (("cap", self.cap), ("global_tokens", self.global_tokens)):
            if value is not None and not 0 < value < np.inf:
                raise ValueError(f"{name} must be above 0 tokens and finite, got {value}")
        if isinstance(self.lengths, Mapping):
            # a fit tries 2**(2 P + 3) sets of features, 0.1 s with 3 parts
            if not 0 < len(self.lengths) <= 3:
                raise ValueError(f"lengths must have 1 to 3 parts, got {len(self.lengths)}: add some of them up")
            if self.padded:
                raise ValueError("padded=True needs lengths= of one part: pass one length for each sample")

    @property
    def parts(self) -> dict[str, Any]:
        """Lengths of each part of a sample, by its name in messages; nothing without lengths."""
        if isinstance(self.lengths, Mapping):
            return {f"lengths[{name!r}]": value for name, value in self.lengths.items()}
        return {} if self.lengths is None else {"lengths": self.lengths}

    def prior(self) -> Array:
        """Return the coefficients of features before anything is learned, ``[F]``: of the first feature alone."""
        count = len(self.parts)
        first: Array = np.eye(1 if self.cost is not None else 3 if count == 1 else 2 * count + 2)[0]
        return first

    def of_dataset(self, dataset: Any) -> SampleCosts:
        """Return the costs of all samples, each feature scaled to the mean 1; refuse numbers that are out of range."""
        read = self.read(dataset)
        known = self._make_sample_costs(list(read.parts.values()), read.cost, len(dataset))
        return SampleCosts(_scale_features(known.features, allow_zeros=len(self.parts) > 1), known.tokens)

    def read(self, dataset: Any) -> Costs:
        """Return these costs with arrays in place of names and functions."""
        several = len(self.parts) > 1
        columns = [read_numbers(dataset, value, name, allow_zeros=several) for name, value in self.parts.items()]
        for name, column in zip(self.parts, columns, strict=True):
            if not column.any():
                raise ValueError(f"{name} is 0 for every sample: leave that part out")
        lengths: Any = columns[0] if columns else None
        if isinstance(self.lengths, Mapping):
            lengths = dict(zip(self.lengths, columns, strict=True))
        cost_N = None if self.cost is None else read_numbers(dataset, self.cost, "cost")
        return replace(self, lengths=lengths, cost=cost_N)

    def of_samples(self, samples: list[Any], first_index: int) -> SampleCosts:
        """Return the costs of samples drawn from a stream, the first of which has this number; not scaled."""
        place: Any = {"first_index": first_index, "suffix": " of the stream"}

        def numbers(name: str, function: Any, *, allow_zeros: bool = False) -> Array:
            values_N: Array = np.array([function(sample) for sample in samples], dtype=np.float64)
            require_in_range(values_N, name, allow_zeros=allow_zeros, **place)
            return values_N

        several = len(self.parts) > 1
        parts_PN = [numbers(name, function, allow_zeros=several) for name, function in self.parts.items()]
        cost_N = None if self.cost is None else numbers("cost", self.cost)
        return self._make_sample_costs(parts_PN, cost_N, len(samples), **place)

    def require_callable_costs(self) -> None:
        """Refuse numbers that are not a function of a sample: samples of a stream cannot be looked up."""
        for name, value in (("cost", self.cost), *self.parts.items()):
            if value is not None and not callable(value):
                raise TypeError(
                    f"{name} must be a function of a sample, as samples of a stream have no index, got "
                    f"{type(value).__name__}"
                )
        if self.global_tokens is not None:
            raise ValueError("global_tokens does not work with a stream: leave it out, and pass global_batch")

    def assign_samples(self, samples: SampleCosts, shares_W: Sizes, coefficients_F: Array, minimum: int) -> Assignment:
        """Return the assignment of the drawn samples with which ranks end together, at these shares of work."""
        # keep the ranks' order of padded batches where that takes at most 5% longer
        return assign(
            sum_of_products(samples.features, coefficients_F),
            shares_W,
            tokens=samples.tokens,
            cap=self.cap,
            lower=min(minimum, len(samples.tokens) // len(shares_W)),
            padded=self.padded,
            order_tolerance=0.05,
        )

    def pack_samples(self, samples: SampleCosts, shares_W: Sizes, coefficients_F: Array, *, lockstep: bool) -> Packing:
        """Return the drawn samples in micro-batches under the cap, with which ranks end together."""
        return pack(
            samples.tokens,
            cap=self.cap,
            speeds=shares_W,
            micro_batches="lockstep" if lockstep else None,
            cost=sum_of_products(samples.features, coefficients_F),
            padded=self.padded,
        )

    def work(self, samples: SampleCosts) -> tuple[float, ...]:
        """Return the features of the work of one rank's samples, ``[F]``: their sum, or padded to the longest."""
        features_NF = samples.features
        padded = self.padded and len(features_NF) > 0  # a packed micro-batch may be empty
        total_F = features_NF.max(axis=0) * len(features_NF) if padded else features_NF.sum(axis=0)
        return tuple(total_F.tolist())

    def settings(self) -> dict[str, object]:
        """Return the rules, which must be the same on every rank."""
        return {"cap": self.cap, "global_tokens": self.global_tokens, "padded": self.padded}

    def _make_sample_costs(
        self, parts_PN: list[Array], cost_N: Any, num_samples: int, first_index: int = 0, suffix: str = ""
    ) -> SampleCosts:
        """Return the numbers of some samples: a given cost is used as it is, and the costs of lengths are learned."""
        length_N = np.cumsum(parts_PN, axis=0)[-1] if parts_PN else None
        if length_N is not None:
            require_in_range(length_N, "lengths", first_index=first_index, suffix=suffix)
        token_N = cost_N if length_N is None else length_N
        if self.cap is not None and (token_N > self.cap).any():
            place = int(token_N.argmax())
            raise ValueError(
                f"sample {first_index + place}{suffix} takes {token_N[place]:g} tokens, more than the cap of "
                f"{self.cap:g}: leave it out, truncate it, or raise the cap"
            )
        if cost_N is not None:
            return SampleCosts(cost_N[:, None], token_N)
        with np.errstate(over="ignore"):
            squares = [one**2 for one in parts_PN]
        # The sum of several parts comes first: before costs are learned, all their tokens cost the same.
        columns = [token_N, *(parts_PN if len(parts_PN) > 1 else ()), *squares, np.ones(num_samples)]
        return SampleCosts(np.stack(columns, axis=1), token_N)


@dataclass(frozen=True, eq=False)
class SampleCosts:
    """The numbers of some samples.

    Parameters
    ----------
    features
        Features of a sample's cost, ``[N, F]``: its given cost alone; or its length, the square of that, and 1. Of
        several parts: the sum of their lengths, each length, each square, and 1.
    tokens
        What each sample takes of the cap and of a budget, ``[N]``: its length, or else its cost.
    """

    features: Array
    tokens: Array

    @property
    def digest(self) -> str:
        """A checksum of all numbers."""
        parts = (np.ascontiguousarray(part).tobytes() for part in (self.features, self.tokens))
        return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()

    def __getitem__(self, samples: Sizes) -> SampleCosts:
        """Return the numbers of these samples."""
        return SampleCosts(self.features[samples], self.tokens[samples])


def _scale_features(features_NF: Array, *, allow_zeros: bool = False) -> Array:
    """Return features of the mean 1 each; with ``allow_zeros``, all but the first may be 0 for some samples."""
    # cumsum adds in one order on every processor: features are compared, and costs computed, bit for bit.
    with np.errstate(all="ignore"):
        scaled_NF: Array = features_NF / (features_NF.cumsum(axis=0)[-1] / len(features_NF))
    positive_NF = scaled_NF[:, :1] if allow_zeros else scaled_NF
    if not (np.isfinite(scaled_NF).all() and (positive_NF > 0).all()):
        first_N = features_NF[:, 0]
        minimum, largest = int(first_N.argmin()), int(first_N.argmax())
        raise ValueError(
            f"samples {minimum} and {largest} are too unequal for floating point, {first_N[minimum]:g} and "
            f"{first_N[largest]:g}: check these numbers and their unit"
        )
    return scaled_NF
