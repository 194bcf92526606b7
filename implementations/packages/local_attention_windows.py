# /// script
# requires-python = ">=3.11"
# dependencies = ["local-attention==1.11.2", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["padded", "in_blocks", "causal"]
#
# [tool.attention-conformance.findings]
# padded = """
# With autopad=True and without a mask, keys of zeros that fill the last window up are attended to. No report
# was found.
# """
# ///
"""local-attention: its LocalAttention with exact windows of 4 keys, to both sides and causal."""

from dataclasses import replace
from typing import Any

import torch
from local_attention import LocalAttention

from attention_conformance import Case, Claims, Feature, Implementation, Premises, Scope, torch_op

WINDOW = 4
FEATURES = frozenset(
    {Feature.CORE, Feature.HEADS, Feature.VALUE_WIDTH, Feature.KEY_VALUE, Feature.GRADIENTS, Feature.VIEWS}
)


def _of_one_length(case: Case) -> Case:
    """Queries and keys are of one sequence."""
    return case.sized(key_length=case.sizes.query_length)


def _windows(is_causal: bool, autopad: bool = True) -> Any:
    attend = LocalAttention(WINDOW, causal=is_causal, exact_windowsize=True, autopad=autopad)

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)  # type: ignore[no-any-return]

    return torch_op(attention, implied=("window_size", "is_causal"))


BOTH_SIDES = Premises(window_left=WINDOW, window_right=WINDOW)
padded = Implementation(
    "local_attention.padded",
    Claims(Scope.OP, FEATURES, fit=_of_one_length, premises=BOTH_SIDES),
    _windows(False),
    "LocalAttention(autopad=True), exact windows to both sides",
)
in_blocks = Implementation(
    "local_attention.in_blocks",
    Claims(Scope.OP, FEATURES, fit=_of_one_length, premises=replace(BOTH_SIDES, block=WINDOW)),
    _windows(False, autopad=False),
    "LocalAttention, exact windows to both sides, lengths that need no padding",
)
causal = Implementation(
    "local_attention.causal",
    Claims(Scope.OP, FEATURES, fit=_of_one_length, premises=Premises(causal=True, window_left=WINDOW)),
    _windows(True),
    "LocalAttention, exact causal windows",
)
