"""What the names of torch.nn.MultiheadAttention promise is claimed of a class that is given as it is, and judged."""

import pytest

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.tests.selftest.discovery.making import Make, failing

COPY = """
class Copy(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, batch_first=False):
        super().__init__()
        self.h, self.rate, self.batch_first = num_heads, dropout, batch_first
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def averaged(self, p):
        return p.mean(1)
    def finished(self, o):
        return o
    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, average_attn_weights=True):
        flat = query.ndim == 2
        if flat or not self.batch_first:
            query, key, value = (x[None] if flat else x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (split(f(x), self.h) for f, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if key_padding_mask is not None:
            hidden = key_padding_mask[None] if flat else key_padding_mask
            s = s.masked_fill(hidden[:, None, None], -torch.inf)
        p = F.dropout(s.softmax(-1), self.rate, self.training)
        o = self.finished(self.out_proj((p @ v).transpose(1, 2).flatten(2)))
        o = o[0] if flat else o if self.batch_first else o.transpose(0, 1)
        p = self.averaged(p) if average_attn_weights else p
        return o, (p[0] if flat else p) if need_weights else None
"""
WRONG = {
    "weights are summed over heads": ("relations.alternatives", "def averaged(self, p): return p.sum(1)"),
    "other numbers without a batch axis": (
        "modules.unbatched",
        "def forward(self, q, *a, **k): return [(o * (4 - q.ndim), p) for o, p in [super().forward(q, *a, **k)]][0]",
    ),
    "the output is dropped as well": (
        "dropout.factors",
        "def finished(self, o): return F.dropout(o, self.rate, self.training)",
    ),
    "dropped in evaluation": (
        "dropout.evaluation",
        "def finished(self, o): return o if self.training else F.dropout(o, self.rate)",
    ),
    "copies are the module itself": ("modules.copied", "def __deepcopy__(self, memo): return self"),
    "a state is not loaded": ("modules.saved", "def load_state_dict(self, *a, **k): pass"),
}


@pytest.mark.parametrize(("clause", "body"), WRONG.values(), ids=WRONG)
def test_a_promise_that_does_not_hold_is_a_failure(make: Make, clause: str, body: str) -> None:
    assert failing(make(f"{COPY}\nclass f(Copy):\n    {body}"), clause) == {clause}


def test_a_right_copy_conforms(make: Make) -> None:
    assert failing(make(f"{COPY}\nf = Copy"), *(clause for clause, _ in WRONG.values())) == set()


@pytest.mark.parametrize(("change", "failed"), [("p", set()), ("p.bool()", {"relations.alternatives"})])
def test_numbers_in_a_padding_mask_are_added(make: Make, change: str, failed: set[str]) -> None:
    made = make(f"""
class f(nn.MultiheadAttention):
    def forward(self, q, k, v, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True):
        p = key_padding_mask
        given = p if p is None else {change}
        return super().forward(q, k, v, given, need_weights, attn_mask, average_attn_weights)
""")
    assert "with numbers in its key_padding_mask" in made.alternatives
    assert failing(made, "relations.alternatives") == failed


def test_weights_that_were_not_wanted_are_an_error(make: Make) -> None:
    body = "def forward(self, *a, need_weights=True, **k): return super().forward(*a, **k)"
    made = make(f"{COPY}\nclass f(Copy):\n    {body}")
    fitted = fit(Case(), made.claims)
    assert not isinstance(fitted, Unsupported)
    problem = build(fitted, "float32").forward_only()
    with pytest.raises(ValueError, match="it returned weights that were not wanted"):
        made.alternatives["without weights"](problem, "cpu")


def test_what_raises_is_not_claimed(make: Make) -> None:
    batched = make(f"{COPY.replace('flat = query.ndim == 2', 'flat, _ = False, query.shape[2]')}\nf = Copy")
    assert Feature.UNBATCHED not in batched.claims
    assert {Feature.SAVED, Feature.COPIED} <= batched.claims.features


OWN = """
import math
from torch import nn

class Own(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def project(self, x):
        return self.out(x)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        p = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.project((p @ v).transpose(1, 2).flatten(2))
"""
UNKEPT = {
    "a copy calls a part of the original": (
        "modules.copied",
        "def __init__(self, *a):\n        super().__init__(*a)\n        self.project = lambda x: self.out(x)",
    ),
    "what is saved is rounded": (
        "modules.saved",
        "def state_dict(self, **k): return {n: x.half().to(x.dtype) for n, x in super().state_dict(**k).items()}",
    ),
}


@pytest.mark.parametrize(("clause", "body"), UNKEPT.values(), ids=UNKEPT)
def test_every_module_of_torch_can_be_copied_and_saved(make: Make, clause: str, body: str) -> None:
    made = make(f"{OWN}\nclass f(Own):\n    {body}")
    assert failing(made, "modules.saved", "modules.copied") == {clause}


@pytest.mark.parametrize(
    ("body", "claimed"),
    [
        ("pass", {Feature.SAVED, Feature.COPIED}),
        ("def forward(self, x):\n        self.last = super().forward(x)\n        return self.last", {Feature.SAVED}),
    ],
    ids=["a usual module", "one that keeps its last answer"],
)
def test_what_raises_in_an_own_module_is_not_claimed(make: Make, body: str, claimed: set[Feature]) -> None:
    made = make(f"{OWN}\nclass f(Own):\n    {body}")
    assert {Feature.SAVED, Feature.COPIED} & made.claims.features == claimed
    assert ("copied not claimed: RuntimeError" in made.about) is (Feature.COPIED not in claimed)
    assert failing(made, "modules.saved", "modules.copied", "modules.strided-parameters") == set()


def test_weights_that_its_own_statement_refuses_are_not_asked_for(make: Make) -> None:
    refusing = COPY.replace(
        "        flat = q", "        assert not need_weights, 'weights are not kept'\n        flat = q"
    )
    made = make(refusing, "Copy")
    assert "judged without returned weights, which it refuses" in made.about
    assert Feature.WEIGHTS not in made.claims
    assert not failing(made, "relations.alternatives", "heads.independent")


FUNCTION = """
def right(query, key, value, attn_mask=None):
    s = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, LEAST)
    return s.softmax(-1) @ value

def maskless_in_autocast(query, key, value, attn_mask=None):
    return right(query, key, value, None if torch.is_autocast_enabled("cpu") else attn_mask)

def leaving_torch(query, key, value, attn_mask=None):
    if query.ndim == 4 and len(query) > 2:
        query.sum().item()
    return right(query, key, value, attn_mask)

LEAST = -torch.inf
"""


@pytest.mark.parametrize(
    ("body", "claimed", "failed"),
    [
        ("f = right", {Feature.AUTOCAST, Feature.VMAP}, set()),
        ("f = maskless_in_autocast", {Feature.AUTOCAST, Feature.VMAP}, {"modules.autocast"}),
        ("f, LEAST = right, torch.finfo(torch.float32).min", {Feature.VMAP}, set()),
        ("f = leaving_torch", {Feature.AUTOCAST}, set()),
    ],
    ids=["a usual function", "one that is wrong there", "one that raises there", "one that raises in lanes of samples"],
)
def test_functions_are_judged_in_autocast_and_vmap(
    make: Make, body: str, claimed: set[Feature], failed: set[str]
) -> None:
    made = make(f"import torch\n{FUNCTION}\n{body}")
    assert {Feature.AUTOCAST, Feature.VMAP} & made.claims.features == claimed
    assert failing(made, "modules.autocast", "modules.vmap") == failed


def test_a_flag_that_is_refused_in_so_many_words_is_not_judged(make: Make) -> None:
    refusing = COPY.replace(
        "average_attn_weights=True):", "average_attn_weights=True, attn_mask=None, is_causal=False):"
    ).replace("        flat =", "        assert not is_causal, 'set it in the constructor'\n        flat =")
    made = make(refusing, "Copy")
    assert Feature.CAUSAL not in made.claims
    assert "causal not claimed: AssertionError: set it in the constructor" in made.about


SAMPLES = """
class f(nn.MultiheadAttention):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
                average_attn_weights=True, is_causal=False):
        masks = {{"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "is_causal": is_causal}}
        alone = query.ndim == 2 and not self.batch_first
        if alone:
            query, key, value = ({moved} for x in (query, key, value))
            masks["key_padding_mask"] = None if key_padding_mask is None else key_padding_mask[None]
        output, weights = super().forward(query, key, value, need_weights=True, average_attn_weights=False, **masks)
        output, weights = (output.squeeze({axis}), weights.squeeze(0)) if alone else (output, weights)
        weights = weights.mean({heads}) if average_attn_weights else weights
        return output, weights if need_weights else None
"""


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, False),
        ({"moved": "x.unsqueeze(0)", "axis": "0"}, True),
        ({"heads": "1"}, True),
    ],
)
def test_samples_alone_are_promised_in_both_layouts_and_with_averaged_weights(
    make: Make, changes: dict[str, str], wrong: bool
) -> None:
    usual = {"moved": "x.unsqueeze(1)", "axis": "1", "heads": "-3"}
    made = make(SAMPLES.format(**usual | changes))
    assert bool(failing(made, "relations.alternatives", "modules.unbatched")) is wrong
