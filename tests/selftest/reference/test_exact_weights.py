"""Equal weights in a half type: right styles keep the bounds, and what is stored or added up in it does not."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.tensors import to_array
from attention_conformance.reference.bounds.exact_weights import KEYS, WIDTH, Excess, excess, just_below_a_tie
from attention_conformance.tests.selftest.reference.half_styles import RIGHT, Answering, Style

HALVES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def kept_in_half(query: Tensor, key: Tensor, value: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A right answer, but for the gradient of the values: its weights are those of a log-sum-exp in the half type."""
    scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
    log = scores.logsumexp(-1, keepdim=True).to(query.dtype).float()
    output, d_query, d_key, _ = Style()(query, key, value, cotangent)
    return output, d_query, d_key, ((scores - log).exp().mT @ cotangent.float()).to(query.dtype)


def found(style: Answering, dtype: str, width: int = WIDTH) -> Excess:
    query, key = torch.ones(1, 2, 1, width), torch.zeros(1, 2, KEYS, width)
    given = (query, key, torch.ones_like(key), torch.full_like(query, just_below_a_tie(dtype, width)))
    halves = tuple(each.to(HALVES[dtype]) for each in given)
    output, _, d_key, d_value = style(*halves)
    o, dv, dk, q, g = (to_array(each) for each in (output, d_value, d_key, halves[0], halves[3]))
    return excess(o, dv, dk, q, g, width**-0.5)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [5, 64, 115, WIDTH])
def test_right_styles_round_little(dtype: str, width: int) -> None:
    for name, style in RIGHT.items():
        each = found(style, dtype, width)
        assert max(each.weights, each.centre) < 0.6, name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [16, WIDTH])
def test_a_stored_log_sum_exp_moves_all_weights(dtype: str, width: int) -> None:
    assert found(kept_in_half, dtype, width).weights > 1.4
