"""Biases by bucket, as a stage of attention that is edited and measured."""

import math
from collections.abc import Mapping
from typing import Any

import torch


def bucketed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of the given keys with the bias of the bucket of each distance."""
    ahead = state["key_places"][:, None, :] - state["query_places"][:, :, None]
    table, sides = state["bucketed_bias"], 2 if state["bidirectional"] else 1
    count, scores, keys = len(table) // sides, state["scores"], state["keys"]
    distance = ahead.abs() if sides == 2 else (-ahead).clamp(min=0)
    exact = max(count // 2, 1)
    octaves = torch.log(distance.clamp(min=exact).double() / exact) / math.log(state["max_distance"] / exact)
    grown = (exact + (octaves * (count - exact)).long()).clamp(max=count - 1)
    entries = torch.where(distance < exact, distance, grown) + (count * (ahead > 0) if sides == 2 else 0)
    bias = table[entries].movedim(-1, 1)
    return {"scores": torch.cat([scores[..., :keys] + bias, scores[..., keys:]], -1)}
