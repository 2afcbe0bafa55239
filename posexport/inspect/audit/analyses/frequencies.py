"""RoPE frequencies by the options of a configuration."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.audit.analyses.described import numeric, whole


def rope_options(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The options of RoPE, one mapping for each kind of layer.

    transformers 5 has them in ``rope_parameters``, for models with windows by kind of layer; before, ``rope_scaling``
    stood with ``rope_theta``.
    """
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict):
        by_kind = [value for value in parameters.values() if isinstance(value, dict)]
        nested = bool(by_kind) and all(isinstance(value, dict) or value is None for value in parameters.values())
        yield from by_kind if nested else [parameters]
        return
    scaling = config.get("rope_scaling")
    shared = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    if isinstance(scaling, dict):
        yield {**shared, **scaling}
    elif shared:
        yield shared


def expected(options: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """The frequencies in radians per token, [D / 2], that options ask for, each set by its name; empty: not known.

    ``dynamic``: the frequencies of short inputs; beyond the original length they depend on the length of the input.

    Sources: Su et al. 2021 (3.4.2); Chen et al. 2023 (linear); Llama 3.1's reference code (llama3); Peng et al. 2023,
    3.2 (yarn); Ding et al. 2024, 3.2 (longrope).
    """
    theta = numeric(options, "rope_theta") or numeric(config, "rope_theta") or 10_000.0
    kind = options.get("rope_type", options.get("type", "default"))
    width = _width(options, config)
    if width is None or not isinstance(kind, str):
        return {}
    unscaled = theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    factor = numeric(options, "factor") or 1.0
    length = numeric(options, "original_max_position_embeddings") or numeric(
        config, "original_max_position_embeddings", "max_position_embeddings"
    )
    if kind in ("default", "mrope", "dynamic"):
        return {kind: unscaled}
    if kind == "linear":
        return {kind: unscaled / factor}
    if kind == "llama3" and length is not None:
        return {kind: _llama3(unscaled, options, factor, length)}
    if kind == "yarn" and length is not None:
        return {kind: _yarn(unscaled, options, factor, length, theta, width)}
    if kind in ("longrope", "su"):
        factors = {name: options.get(f"{name}_factor") for name in ("short", "long")}
        arrays = {name: np.asarray(value, np.float64) for name, value in factors.items() if _is_numbers(value)}
        return {name: unscaled / array for name, array in arrays.items() if array.shape == unscaled.shape}
    return {}


def _width(options: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """How many elements of a head are rotated."""
    heads = whole(config, "num_attention_heads", "n_head", "num_heads")
    hidden = whole(config, "hidden_size", "n_embd", "d_model")
    head = whole(config, "head_dim") or (hidden // heads if hidden and heads else None)
    fraction = (
        numeric(options, "partial_rotary_factor") or numeric(config, "partial_rotary_factor", "rotary_pct") or 1.0
    )
    return None if head is None else int(head * fraction) // 2 * 2 or None


def _llama3(
    unscaled: NDArray[np.float64], options: Mapping[str, Any], factor: float, length: float
) -> NDArray[np.float64]:
    """Long waves are divided by the factor, short ones kept, those between interpolated."""
    low, high = numeric(options, "low_freq_factor") or 1.0, numeric(options, "high_freq_factor") or 4.0
    weight = np.clip((length * unscaled / (2 * np.pi) - low) / (high - low), 0, 1)
    return unscaled * (weight + (1 - weight) / factor)


def _yarn(
    unscaled: NDArray[np.float64], options: Mapping[str, Any], factor: float, length: float, theta: float, width: int
) -> NDArray[np.float64]:
    """A ramp over the dimensions between two numbers of rotations."""

    def dimension(rotations: float) -> float:
        return width * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(numeric(options, "beta_fast") or 32.0), dimension(numeric(options, "beta_slow") or 1.0)
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / (high - low if high != low else 1e-3), 0, 1)
    scaled: NDArray[np.float64] = unscaled / factor * ramp + unscaled * (1 - ramp)
    return scaled


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(x, int | float) and x > 0 for x in value)
