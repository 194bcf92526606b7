"""Candidates beyond the core: what names, constructors and a few calls claim, and that no right one is accused."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.clauses import Level
from attention_conformance.spec.conventions import ReturnedWeights, TableForm
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import OF_TENSORS, Make

EVERY = {
    "window_size": Feature.WINDOW,
    "logits_soft_cap": Feature.SOFTCAP,
    "rotary_base": Feature.ROTARY,
    "rotary_ndims": Feature.PARTIAL_ROTARY,
    "position_ids": Feature.POSITION_IDS,
    "q_offset": Feature.QUERY_START,
    "q_starts": Feature.QUERY_STARTS,
    "query_seq_lengths": Feature.QUERY_LENS,
    "alibi_slopes": Feature.ALIBI,
    "relative_bias": Feature.RELATIVE_BIAS,
    "bucketed_bias": Feature.BUCKETED_BIAS,
    "max_distance": Feature.BUCKET_DISTANCE,
    "bidirectional": Feature.BUCKET_DIRECTIONS,
    "sink": Feature.SINKS,
    "add_zero_attn": Feature.ZERO_ATTN,
    "head_gates": Feature.HEAD_GATES,
    "gate_logits": Feature.OUTPUT_GATES,
    "segment_ids": Feature.SEGMENTS,
    "dropout_p": Feature.DROPOUT,
}
SPELLED = {
    "logits_soft_cap": "softcap",
    "q_offset": "query_start",
    "sink": "sinks",
    "segment_ids": "query_segments",
    "rotary_ndims": "rotary_dim",
    "q_starts": "query_starts",
    "query_seq_lengths": "query_lens",
    "position_ids": "query_positions",
}
STEPS = "from attention_conformance.implementations.builtin.stepwise.steps import Steps\nsteps = Steps()\n"
GROUPS = """
def f(q, k, v, attn_mask=None, is_causal=False, enable_gqa=False):
    assert q.shape[1] % k.shape[1] == 0
    k, v = (x.{repeat} if enable_gqa else x for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal)
"""
LAYER = """
class f(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads=None, dropout=0.0):
        super().__init__()
        assert n_heads % (n_kv_heads or n_heads) == 0
        self.heads, self.kv_heads, self.rate = n_heads, n_kv_heads or n_heads, dropout
        width = dim // n_heads * self.kv_heads
        self.wq, self.wk, self.wv = nn.Linear(dim, dim), nn.Linear(dim, width), nn.Linear(dim, width)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = split(self.wq(x), self.heads), split(self.wk(x), self.kv_heads), split(self.wv(x), self.kv_heads)
        k, v = (rows.repeat_interleave(self.heads // self.kv_heads, 1) for rows in (k, v))
        if mask is not None:
            mask = (~mask if mask.dtype is torch.bool else mask).unflatten(0, (len(x), self.heads))
        o = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=self.rate if self.training else 0.0)
        return self.wo(o.transpose(1, 2).flatten(2))
"""


def failing(implementation: Implementation, *clauses: str) -> set[str]:
    """The clauses among those that match and are claimed which do not hold in float64."""
    verdicts = run(implementation, clauses, ("float64",))
    assert any(verdict.checks for verdict in verdicts)
    return {v.clause for v in verdicts if v.status in (Status.FAIL, Status.ERROR)}


class TestGroupedHeads:
    def test_torch(self) -> None:
        result = candidate("torch.nn.functional:scaled_dot_product_attention", {})
        assert {Feature.GROUPED, Feature.DROPOUT} < result.claims.features
        assert not failing(result, "grouped.*", "dropout.*", "heads.*")

    def test_consecutive(self, make: Make) -> None:
        result = make(GROUPS.format(repeat="repeat_interleave(q.shape[1] // k.shape[1], 1)"))
        assert Feature.GROUPED in result.claims
        assert not failing(result, "grouped.*")

    def test_in_turn(self, make: Make) -> None:
        text = GROUPS.format(repeat="repeat(1, q.shape[1] // k.shape[1], 1, 1)")
        assert "grouped.order" in failing(make(text), "grouped.*")
        assert not failing(make(text, group_order="tiled"), "grouped.*")

    @pytest.mark.parametrize("repeat", ["repeat_interleave(2, 1)", "repeat(1, 2, 1, 1)"])
    def test_without_a_parameter(self, make: Make, repeat: str) -> None:
        text = f"def f(q, k, v):\n    k, v = (x if len(q[0]) == len(x[0]) else x.{repeat} for x in (k, v))\n"
        assert Feature.GROUPED in make(text + "    return attend(q, k, v)[0]").claims

    @pytest.mark.parametrize(
        ("text", "about"),
        [
            ("def f(q, k, v): return attend(q, k, v)[0]", ""),
            ("def f(*x): return torch.cat([attend(*y)[0] for y in zip(*(z.split(1, 1) for z in x))], 1)", ""),
            (
                "def f(q, k, v, enable_gqa=False): return attend(q, k, v)[0]",
                "; grouped not claimed: RuntimeError: The size of tensor a (6) must match the size of tensor b (3) at "
                "non-singleton dimension 1",
            ),
            (
                "def f(q, *x): return attend(q, *(y if y.shape[1] == q.shape[1] else y.mean(1, True) for y in x))[0]",
                "; grouped not claimed: it answers fewer key heads, and repeats them in no known order",
            ),
        ],
    )
    def test_grouped_heads_that_are_not_repeated_are_not_claimed(self, make: Make, text: str, about: str) -> None:
        result = make(text)
        assert result.claims.features == OF_TENSORS
        assert result.about == f"a function of torch tensors{about}"


class TestNames:
    def test_each_claims_its_feature_and_has_its_effect(self, make: Make) -> None:
        text = f"""
def f(q, k, v, is_causal=False, {", ".join(f"{name}=None" for name in EVERY)}):
    options = {{{SPELLED}.get(n, n): x for n, x in list(locals().items())[3:] if x is not None}}
    if segment_ids is not None:
        options["key_segments"] = segment_ids
    if position_ids is not None:
        options["key_positions"] = position_ids
    return steps(q, k, v, **options)
"""
        result = make(STEPS + text)
        assert set(EVERY.values()) < result.claims.features
        assert not failing(result, "window.*", "softcap.*", "positions.*", "sinks.*", "head-gates.*", "packed.*")

    @pytest.mark.parametrize(
        ("queries", "keys", "options", "feature"),
        [
            ("query_segments", "key_segments", ("query_segments", "key_segments"), Feature.SEGMENTS),
            ("q_segment_ids", "kv_segment_ids", ("query_segments", "key_segments"), Feature.SEGMENTS),
            ("cu_seqlens_q", "cu_seqlens_k", ("cu_seqlens_q", "cu_seqlens_k"), Feature.CUMULATIVE_LENGTHS),
        ],
    )
    def test_documents(self, make: Make, queries: str, keys: str, options: tuple[str, str], feature: Feature) -> None:
        arguments = f"{options[0]}={queries}, {options[1]}={keys}"
        result = make(f"{STEPS}def f(q, k, v, {queries}=None, {keys}=None): return steps(q, k, v, {arguments})")
        assert feature in result.claims
        assert not failing(result, "packed.*")

    def test_ids_of_queries_alone_claim_nothing(self, make: Make) -> None:
        assert make("def f(q, k, v, q_segment_ids=None): return attend(q, k, v)[0]").claims.features == OF_TENSORS

    def test_another_form_than_the_suite_gives_is_a_finding(self, make: Make) -> None:
        result = make("def f(q, k, v, window_size=0): return attend(q, k, v)[0] * (0 <= window_size)")
        assert Feature.WINDOW not in result.claims
        why = "not judged: the keys that it shows are no window that the suite knows"
        assert result.findings == {"window_size": why}

    def test_a_named_option_without_effect_fails(self, make: Make) -> None:
        result = make("def f(q, k, v, dropout_p=0.0, softcap=None): return attend(q, k, v)[0]")
        assert {"dropout.rate", "softcap.formula"} & failing(result, "dropout.*", "softcap.*")

    def test_keyword_arguments_claim_what_they_change(self, make: Make) -> None:
        whole = make("def f(q, k, v, **options): return F.scaled_dot_product_attention(q, k, v, **options)")
        assert {Feature.GROUPED, Feature.DROPOUT, Feature.SCALE} < whole.claims.features
        assert Feature.WINDOW not in whole.claims
        assert whole.about == "a function of torch tensors"

    def test_keyword_arguments_without_effect(self, make: Make) -> None:
        ignoring = make("def f(q, k, v, **options): return attend(q, k, v)[0]")
        assert ignoring.claims.features == OF_TENSORS
        assert "; dropout, window, softcap, " in ignoring.about

    def test_keyword_arguments_that_the_wrapped_function_refuses(self, make: Make) -> None:
        text = "def g(q, k, v, is_causal=False): return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)\n"
        wrapped = make(f"{text}def f(*args, **kwargs): return g(*args, **kwargs)")
        assert wrapped.claims.features == OF_TENSORS | {Feature.CAUSAL}
        assert "bool-mask not claimed: its **kwargs takes it, and it raises" in wrapped.about

    def test_keyword_arguments_that_only_go_with_an_option_are_compared_with_it(self, make: Make) -> None:
        text = "def f(q, k, v, rotary_base=None, **options):\n    return steps(q, k, v, rotary_base=rotary_base)"
        result = make(STEPS + text)
        assert Feature.ROTARY in result.claims
        assert Feature.PARTIAL_ROTARY not in result.claims

    def test_the_mode_of_a_function(self, make: Make) -> None:
        text = "def f(q, k, v, dropout_p=0.0, training=False):\n    p = attend(q, k, v)[1]\n"
        result = make(text + "    return F.dropout(p, dropout_p, training) @ v")
        assert {Feature.DROPOUT, Feature.EVALUATION} < result.claims.features
        assert not failing(result, "dropout.*")


class TestReturnedWeights:
    TEXT = "def f(q, k, v, dropout_p=0.0):\n    p = attend(q, k, v)[1]\n    d = F.dropout(p, dropout_p)\n"

    @pytest.mark.parametrize(
        ("returned", "where"), [("p", ReturnedWeights.BEFORE_DROPOUT), ("d", ReturnedWeights.AFTER_DROPOUT)]
    )
    def test_whether_they_are_those_before_dropout_is_detected(
        self, make: Make, returned: str, where: ReturnedWeights
    ) -> None:
        result = make(self.TEXT + f"    return d @ v, {returned}")
        assert result.claims.conventions.returned_weights is where
        assert not failing(result, "dropout.returned-weights")

    def test_a_setting_goes_before(self, make: Make) -> None:
        result = make(self.TEXT + "    return d @ v, d", returned_weights="before-dropout")
        assert failing(result, "dropout.returned-weights") == {"dropout.returned-weights"}


class TestModules:
    def test_torch(self) -> None:
        result = candidate("torch.nn:MultiheadAttention", {})
        assert result.claims.conventions.returned_weights is ReturnedWeights.AFTER_DROPOUT
        assert not failing(result, "dropout.*", "sinks.*", "modules.evaluation")

    def test_groups_and_dropout_of_the_constructor(self, make: Make) -> None:
        result = make(LAYER)
        assert {Feature.GROUPED, Feature.DROPOUT, Feature.EVALUATION} < result.claims.features
        assert not failing(result, "grouped.*", "dropout.*", "heads.*")

    def test_dropout_that_goes_on_in_evaluation_fails(self, make: Make) -> None:
        result = make(LAYER.replace("self.rate if self.training else 0.0", "self.rate"))
        assert "dropout.evaluation" in failing(result, "dropout.*")

    def test_dropout_of_the_output_is_noted(self, make: Make) -> None:
        text = LAYER.replace("dropout_p=self.rate if self.training else 0.0", "dropout_p=0.0")
        text = text.replace("return self.wo(o.transpose(1, 2).flatten(2))", "o = self.wo(o.transpose(1, 2).flatten(2))")
        result = make(text + "        return F.dropout(o, self.rate, self.training)")
        assert not {Feature.DROPOUT, Feature.EVALUATION} & result.claims.features
        assert "; dropout not claimed: it drops components of the output, not weights" in result.about


UNCHECKED = """
class f(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.size = n_heads, n_kv_heads, dim // n_heads
        self.wq, self.wk, self.wv = (nn.Linear(dim, n * self.size) for n in (n_heads, n_kv_heads, n_kv_heads))
        self.wo = nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        k, v = (rows.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for rows in (k, v))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
"""
LOOPS = """
def f(q, k, v, mask=None):
    length, masks = k.shape[2], None if mask is None else torch.broadcast_to(mask, (*q.shape[:2], *mask.shape[-2:]))
    rows = [[attend(q[b, h], k[b, h], v[b, h], None if mask is None else masks[b, h, :q.shape[2], :length])[0]
             for h in range(q.shape[1])] for b in range(len(q))]
    return torch.stack([torch.stack(heads) for heads in rows])
"""


@pytest.mark.parametrize(
    ("text", "clauses"), [(UNCHECKED, ("grouped.whole-groups",)), (LOOPS, ("errors.*",))], ids=["class", "function"]
)
def test_sizes_that_do_not_fit_and_are_not_looked_at_are_no_mistake(
    make: Make, text: str, clauses: tuple[str, ...]
) -> None:
    failed = [v for v in run(make(text), clauses, ("float64",)) if v.status is Status.FAIL]
    assert not [v.clause for v in failed if v.level == Level.MUST]
    assert len(failed) == (0 if text is UNCHECKED else 2)


ROTATED = """
def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def f(query, key, value, cos=None, sin=None):
    if cos is not None:
        cos, sin = cos[:, None], SINES
        query, key = (x * cos + rotate_half(x) * sin for x in (query, key))
    return F.scaled_dot_product_attention(query, key, value)
"""


@pytest.mark.parametrize(("sines", "form"), [("sin[:, None]", TableForm.DOUBLED), ("sin[:, None] ** 2", None)])
def test_tables_under_a_name_that_promises_no_form_are_claimed_in_the_form_that_is_seen(
    make: Make, sines: str, form: TableForm | None
) -> None:
    made = make(ROTATED.replace("SINES", sines))
    assert (Feature.ROTARY_TABLES in made.claims) is (form is not None)
    assert ("rotary-tables not claimed" in made.about) is (form is None)
    assert form is None or made.claims.conventions.rotary_tables is form
