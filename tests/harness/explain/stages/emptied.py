"""Emptied: what rows without any key answer, also those that only a mistake has emptied."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_conformance.spec.conventions import Conventions, EmptyRow


def answered_rows(weights: Tensor, empty: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Weights of zeros where `empty` (B, H, Lq, 1), and else what is claimed for those rows.

    Rows that only a mistake has emptied have the answer `unforeseen` of the state, if there is one.
    """
    answers = {answer: torch.from_numpy(np.array(rows))[..., None] for answer, rows in state["empty_rows"].items()}
    foreseen = reduce(torch.logical_or, answers.values())
    weights = weights.masked_fill(empty, 0.0)
    of_others = state.get("unforeseen", _of_all(state["conventions"]))
    for answer, filling in ((EmptyRow.NAN, float("nan")), (EmptyRow.UNIFORM, 1.0 / max(1, state["keys"]))):
        rows = answers[answer] | ~foreseen if answer is of_others else answers[answer]
        weights = weights.masked_fill(rows & empty, filling) if rows.any() else weights
    return weights


def _of_all(claimed: Conventions) -> EmptyRow:
    """The answer that is claimed whatever empties a row; zeros where it depends on that."""
    claims = {claimed.empty_row_bool, claimed.empty_row_float, claimed.empty_row_padding, claimed.empty_row_causal}
    return claims.pop() if len(claims) == 1 else EmptyRow.ZEROS


def unforeseen(state: Mapping[str, Any]) -> bool:
    """Whether the weights of a row have no sum, though it sees keys: a mistake has emptied it."""
    foreseen = reduce(np.logical_or, state["empty_rows"].values())
    sums = state["weights"].detach().sum(-1)
    none = (sums == 0.0) | sums.isnan()
    return none.shape == foreseen.shape and bool(none[~torch.from_numpy(np.array(foreseen))].any())
