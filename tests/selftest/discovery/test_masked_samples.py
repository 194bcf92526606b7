"""Masks in modules of unknown form: each sample has its own, in whatever order the heads lie."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.modules.masked_samples import MaskedSamples
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import START, failing, write

BLOCK = """
class f(nn.Module):
    def __init__(self, dim_Q, dim_K, dim_V, num_heads):
        super().__init__()
        self.h, self.width = num_heads, dim_V // num_heads
        self.fc_q, self.fc_k, self.fc_v = nn.Linear(dim_Q, dim_V), nn.Linear(dim_K, dim_V), nn.Linear(dim_K, dim_V)
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q, K, mask=None):
        q, k, v = (torch.cat(x.split(self.width, 2)) for x in (self.fc_q(Q), self.fc_k(K), self.fc_v(K)))
        scores = q @ k.mT / math.sqrt(self.fc_o.in_features)
        if mask is not None:
            scores = scores.masked_fill({masked}, -math.inf)
        x = torch.cat((q + scores.softmax(-1) @ v).split(len(Q)), 2)
        return x + torch.relu(self.fc_o(x))
"""
BY_HEADS = "~mask.repeat(self.h, 1)[:, None]"
BY_SAMPLES = "~mask.repeat_interleave(self.h, 0)[:, None]"
SHARED = "~mask"


def ways(folder: Path, masked: str) -> tuple[set[str], bool]:
    """What is looked at of its masks, and whether it fails."""
    made = candidate(f"{write(folder, 'mine.py', START + BLOCK.format(masked=masked))}:f", {}, in_part=True)
    otherwise = vars(made.modes[Feature.AS_BUILT])["otherwise"]
    looked = {how for how, run in otherwise.items() if isinstance(run, MaskedSamples)}
    return looked, bool(failing(made, "modules.as-built"))


@pytest.mark.parametrize(("masked", "wrong"), [(BY_HEADS, False), (BY_SAMPLES, True)])
def test_samples_with_masks_of_their_own_are_as_each_alone(tmp_path: Path, masked: str, wrong: bool) -> None:
    assert ways(tmp_path, masked) == ({"samples with masks of their own in mask"}, wrong)


def test_a_mask_that_all_samples_share_is_none_of_samples(tmp_path: Path) -> None:
    assert ways(tmp_path, SHARED) == (set(), False)
