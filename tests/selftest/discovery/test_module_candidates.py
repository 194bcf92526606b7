"""Module classes as candidates: how they are built, filled and called, and what they claim."""

import pytest
import torch
from torch import nn

from attention_conformance.implementations.adapters.torch_module import Packed
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.modules.parameters import ACCEPTED, LAYERS, find_places, place_of
from attention_conformance.implementations.discovery.modules.plans import ALWAYS
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.selftest.discovery.making import MASKS, WRAP, Make, assert_conforms, refused

SELF = """
class f(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads, self.proj = n_heads, nn.Linear(d_model, d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)

    def attend(self, x, mask):
        q, k, v = (split(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        o, p, s = attend(q, k, v, ~mask if mask is not None and mask.dtype is torch.bool else mask)
        return self.proj(o.transpose(1, 2).flatten(2)), p

    def forward(self, x, mask=None):
        return self.attend(x, mask)[0]
"""
SEEN = ("with True in 'mask' as masked out",)
KEPT = {Feature.SAVED, Feature.COPIED, Feature.AUTOCAST}
SELF_FEATURES = ALWAYS | MASKS | KEPT | {Feature.OUTPUT_PROJECTION, Feature.OUTPUT_BIAS}

CROSS = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads, kdim=None, vdim=None):
        super().__init__()
        self.heads, e = num_heads, embed_dim
        self.to_q, self.to_k, self.to_v = nn.Linear(e, e), nn.Linear(kdim or e, e), nn.Linear(vdim or e, e)

    def forward(self, query, key, value, attn_mask=None, is_causal=False):
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = ~attn_mask
        q, k, v = (split(x, self.heads) for x in (self.to_q(query), self.to_k(key), self.to_v(value)))
        return F.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal).transpose(1, 2).flatten(2)
"""
CROSS_FEATURES = ALWAYS | MASKS | KEPT | {Feature.CROSS, Feature.KEY_VALUE, Feature.BIAS, Feature.CAUSAL}


PASSING_ON = """
    def __init__(self, *a, **k): super().__init__(*a, **k)
    def forward(self, *a, **k): return super().forward(*a, **k)
"""
SIZES = "embed_dim, num_heads"
UNKNOWN = "the suite does not know its parameter"


def plain(init: str, inputs: str = "x", sizes: str = SIZES) -> str:
    """A class with this line in its constructor, and a forward that returns a number."""
    lines = f"class f(nn.Module):\n    def __init__(self, {sizes}):\n        super().__init__()\n"
    return f"{lines}        {init}\n    def forward(self, {inputs}): return 0"


PROMISED = {Feature.SAVED, Feature.COPIED, Feature.UNBATCHED}


class TestMultiheadAttention:
    def test_torch(self) -> None:
        result = candidate("torch.nn:MultiheadAttention", {})
        more = {Feature.INPUT_WIDTHS, Feature.KEY_PADDING, Feature.OUTPUT_BIAS, Feature.OUTPUT_PROJECTION}
        assert result.name == "MultiheadAttention"
        assert result.claims.scope is Scope.MODULE
        extra = {Feature.DROPOUT, Feature.EVALUATION, Feature.BIAS_KV, Feature.ZERO_ATTN}
        assert result.claims.features == CROSS_FEATURES | more | extra | {Feature.WEIGHTS} | PROMISED
        assert result.claims.conventions.bool_mask is Polarity.MASKED_OUT
        assert result.about == "a module class, (B, L, E); a row without keys gets nan"
        assert_conforms(result)

    @pytest.mark.parametrize("body", ["    pass", PASSING_ON])
    def test_subclasses(self, make: Make, body: str) -> None:
        result = make(f"class f(nn.MultiheadAttention):\n{body}")
        assert result.claims.features == candidate("torch.nn:MultiheadAttention", {}).claims.features
        assert_conforms(result)

    def test_a_subclass_that_does_not_take_the_layout(self, make: Make) -> None:
        text = "class f(nn.MultiheadAttention):\n    def __init__(self, embed_dim, num_heads):\n"
        result = make(text + "        super().__init__(embed_dim, num_heads)")
        assert result.about == "a module class, (L, B, E); a row without keys gets nan"
        assert_conforms(result)

    def test_averaged_weights(self, make: Make) -> None:
        text = "class f(nn.MultiheadAttention):\n    def forward(self, q, k, v, need_weights=False):\n"
        result = make(text + "        return super().forward(q, k, v, need_weights=need_weights)")
        assert {Feature.AVERAGED_WEIGHTS, Feature.WEIGHTS} & result.claims.features == {Feature.AVERAGED_WEIGHTS}
        assert_conforms(result)

    def test_it_counts_heads_when_built(self) -> None:
        construct = candidate("torch.nn:MultiheadAttention", {}).construct
        assert construct is not None
        assert isinstance(construct(3, 12), nn.MultiheadAttention)
        with pytest.raises(AssertionError):
            construct(3, 8)


class TestSelfAttention:
    @pytest.mark.parametrize(("answer", "more"), [("[0]", set()), ("", {Feature.WEIGHTS})])
    def test_one_input_and_weights_that_are_always_returned(self, make: Make, answer: str, more: set[Feature]) -> None:
        result = make(SELF.replace("self.attend(x, mask)[0]", f"self.attend(x, mask){answer}"))
        assert result.claims.features == SELF_FEATURES | more
        assert_conforms(result)

    def test_length_first_is_detected(self, make: Make) -> None:
        answer = "self.attend(x.transpose(0, 1), mask)[0].transpose(0, 1)"
        result = make(SELF.replace("self.attend(x, mask)[0]", answer))
        assert result.about == "a module class, (L, B, E); a row without keys gets nan"
        assert result.as_seen == SEEN
        assert_conforms(result)

    def test_other_settings(self, make: Make) -> None:
        result = make(SELF.replace("~mask if", "mask if"), bool_mask="may-attend")
        assert result.claims.conventions.bool_mask is Polarity.MAY_ATTEND
        assert_conforms(result)

    @pytest.mark.parametrize("condition", ["mask.ndim == 2", "mask.ndim == 4", "len(mask) == 1 or mask.ndim == 4"])
    def test_the_mask_in_the_shape_that_it_takes(self, make: Make, condition: str) -> None:
        check = f"if mask is not None and not ({condition}): raise ValueError('shape')\n        return self.attend("
        assert_conforms(make(SELF.replace("return self.attend(", check)))

    def test_random_in_training_mode(self, make: Make) -> None:
        text = SELF.replace("self.proj(o", "nn.Dropout(0.5).train(self.training)(self.proj(o")
        result = make(text.replace("(2)), p", "(2))), p"))
        mode = "in eval mode, because it answers at random in training mode"
        assert result.about == f"a module class, (B, L, E); {mode}; a row without keys gets nan"
        assert_conforms(result)

    def test_dropout_is_switched_off_where_it_can_be(self, make: Make) -> None:
        text = SELF.replace("n_heads):", "n_heads, dropout=0.1):")
        text = text.replace("self.heads,", "assert not dropout\n        self.heads,", 1)
        refused = "dropout not claimed: AssertionError; evaluation not claimed: AssertionError"
        assert make(text).about == f"a module class, (B, L, E); a row without keys gets nan; {refused}"

    def test_dtypes_and_empty_sizes(self, make: Make) -> None:
        check = "if not x.numel() or x.dtype is torch.float16: raise ValueError('no')\n        "
        result = make(SELF.replace("return self.attend(", f"{check}return self.attend("))
        assert result.claims.dtypes == ("float64", "float32", "bfloat16")
        assert Feature.EMPTY_SIZES not in result.claims
        notes = "float16 not claimed: ValueError: no; empty-sizes not claimed: ValueError: no"
        assert result.about.endswith(notes)


class TestCrossAttention:
    def test_three_inputs_of_any_width(self, make: Make) -> None:
        result = make(CROSS)
        assert result.claims.features == CROSS_FEATURES | {Feature.INPUT_WIDTHS} | PROMISED
        assert_conforms(result)

    def test_one_width(self, make: Make) -> None:
        text = CROSS.replace(", kdim=None, vdim=None", "").replace("kdim or e", "e").replace("vdim or e", "e")
        result = make(text)
        assert result.claims.features == CROSS_FEATURES | PROMISED
        assert_conforms(result)

    def test_a_causal_flag_that_needs_its_mask(self, make: Make) -> None:
        check = "if is_causal and attn_mask is None: raise ValueError\n        q, k, v ="
        assert_conforms(make(CROSS.replace("q, k, v =", check).replace("0.0, is_causal", "0.0")))

    def test_a_causal_flag_without_a_mask(self, make: Make) -> None:
        text = CROSS.replace("attn_mask=None, is_causal=False", "causal=False")
        result = make(text.replace("if attn_mask", "attn_mask, is_causal = None, causal\n        if attn_mask"))
        assert result.claims.features == (CROSS_FEATURES | {Feature.INPUT_WIDTHS}) - MASKS
        assert_conforms(result)

    @pytest.mark.parametrize(("given", "polarity"), [("~attn_mask", "masked-out"), ("attn_mask", "may-attend")])
    def test_the_meaning_of_true_is_seen_where_two_interfaces_share_the_names(
        self, make: Make, given: str, polarity: str
    ) -> None:
        result = make(CROSS.replace("attn_mask = ~attn_mask", f"attn_mask = {given}"))
        assert result.claims.conventions.bool_mask == polarity
        assert Feature.BOOL_MASK in result.claims
        assert_conforms(result)

    def test_a_mask_of_keys_under_the_name_of_one_of_scores(self, make: Make) -> None:
        keys = "attn_mask = attn_mask[:, None, None].expand(-1, self.heads, -1, -1)"
        text = CROSS.replace(", is_causal=False", "").replace(", is_causal)", ")")
        result = make(text.replace("attn_mask = ~attn_mask", keys))
        assert Feature.KEY_PADDING in result.claims
        assert not MASKS & result.claims.features
        assert_conforms(result)

    def test_a_mask_for_each_sample_and_head_alone(self, make: Make) -> None:
        flat = "attn_mask = attn_mask.view(-1, self.heads, query.shape[1], key.shape[1])"
        text = CROSS.replace("        q, k, v =", f"        if attn_mask is not None: {flat}\n        q, k, v =")
        result = make(text.replace("embed_dim", "dim").replace("num_heads", "heads"))
        assert Feature.BOOL_MASK in result.claims
        assert "with one mask for all samples and heads" not in result.alternatives
        assert_conforms(result)

    def test_options_that_only_kwargs_take_are_no_other_way_of_calling(self, make: Make) -> None:
        text = CROSS.replace("is_causal=False", "is_causal=False, **options")
        weights = ", torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)"
        result = make(text.replace(".transpose(1, 2).flatten(2)", f".transpose(1, 2).flatten(2){weights}"))
        assert "with averaged weights" not in result.alternatives

    def test_each_kind_of_mask_shows_its_own_empty_rows(self, make: Make) -> None:
        keeping = "attn_mask = torch.where(attn_mask, -1e30, 0.0)"
        conventions = make(CROSS.replace("attn_mask = ~attn_mask", keeping)).claims.conventions
        found = {key: value for key, value in conventions.items() if key.startswith("empty-row-")}
        seen = {"empty-row-bool": "uniform", "empty-row-causal": "uniform", "empty-row-float": "zeros"}
        assert found == {**seen, "empty-row-padding": "zeros"}

    def test_a_setting_leaves_what_is_seen_of_others(self, make: Make) -> None:
        text = CROSS.replace("attn_mask = ~attn_mask", "attn_mask = attn_mask")
        conventions = make(text, empty_row_bool="uniform", group_order="tiled").claims.conventions
        given = {"empty-row-bool": "uniform", "group-order": "tiled"}
        assert conventions == conventions.claiming({**given, "bool-mask": "may-attend"})

    def test_biases_are_switched_on(self, make: Make) -> None:
        text = CROSS.replace("vdim=None)", "vdim=None, bias=False)").replace(", e)", ", e, bias=bias)")
        assert Feature.BIAS in make(text).claims

    def test_building_leaves_the_random_state(self, make: Make) -> None:
        state = torch.get_rng_state()
        make(CROSS)
        assert torch.equal(torch.get_rng_state(), state)


class TestSpellings:
    @pytest.mark.parametrize(
        ("path", "place"),
        [
            ("q_proj.weight", "w_q"),
            ("W_k.bias", "b_k"),
            ("linear_v.weight", "w_v"),
            ("attention.self.query.weight", "w_q"),
            ("wo.weight", "w_o"),
            ("to_out.0.bias", "b_o"),
            ("c_proj.weight", "w_o"),
            ("c_attn.weight", Packed(("w_q", "w_k", "w_v"))),
            ("to_kv.bias", Packed(("b_k", "b_v"))),
            ("mha.in_proj_bias", Packed(("b_q", "b_k", "b_v"))),
            ("mha.k_proj_weight", "w_k"),
            ("norm.weight", None),
            ("q_proj.scale", None),
            ("w_q", None),
        ],
    )
    def test_place(self, path: str, place: str | Packed | None) -> None:
        assert place_of(path) == place

    def test_no_spelling_means_two_things(self) -> None:
        assert set(LAYERS.values()) == {"q", "k", "v", "kv", "qkv", "o"}

    def test_all_places_of_torch(self) -> None:
        module = nn.MultiheadAttention(12, 3, kdim=5)
        assert set(find_places(module)) == set(dict(module.named_parameters()))


class TestRefusals:
    @pytest.mark.parametrize(
        ("sizes", "inputs", "message"),
        [
            ("num_heads, seats", "x", "its constructor is f(num_heads, seats): take embed_dim first, then num_heads"),
            ("width", "x", "its constructor is f(width): it has to take embed_dim, num_heads"),
            ("embed_dim, num_heads, vocabulary", "x", "its constructor needs 'vocabulary' too: give it a default"),
            (SIZES, "mask", "its forward takes (mask): let it take query, key, value or x"),
        ],
    )
    def test_signatures(self, make: Make, sizes: str, inputs: str, message: str) -> None:
        assert refused(make, plain("pass", inputs, sizes)) == f"{message}, {WRAP}"

    @pytest.mark.parametrize(
        ("init", "message"),
        [
            ("pass", f"it has no parameter for the query projection: use {ACCEPTED}"),
            ("self.bent = nn.PReLU(12)", f"{UNKNOWN} 'bent.weight' (12,): use {ACCEPTED}"),
            ("self.w_q = nn.Parameter(torch.zeros(12, 12))", f"{UNKNOWN} 'w_q' (12, 12): use {ACCEPTED}"),
            ("self.q = nn.Bilinear(12, 12, 12)", f"{UNKNOWN} 'q.weight' (12, 12, 12): use {ACCEPTED}"),
            (
                "self.qkv = nn.Linear(12, 24)",
                "its parameter 'qkv.weight' has shape (24, 12), expected (36, 12) for w_q, w_k, w_v at embed_dim=12: "
                "store it as nn.Linear does",
            ),
            (
                "self.q, self.q_proj = nn.Linear(12, 12), nn.Linear(12, 12)",
                "its parameters 'q.weight' and 'q_proj.weight' are both named as w_q: rename one",
            ),
        ],
    )
    def test_parameters(self, make: Make, init: str, message: str) -> None:
        assert refused(make, plain(init)) == f"{message}, {WRAP}"

    def test_a_class_without_a_forward(self, make: Make) -> None:
        text = "class f(nn.Module):\n    def __init__(self, embed_dim, num_heads): super().__init__()"
        assert refused(make, text) == f"it defines no forward: define forward(query, key, value), {WRAP}"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (plain("raise KeyError('no')"), "it cannot be built with embed_dim=12, num_heads=3: KeyError: 'no'"),
            (
                plain("self.qkv = nn.Linear(embed_dim, 3 * embed_dim)"),
                "it returned an object of type int: return a tensor, or a tuple that begins with it",
            ),
        ],
    )
    def test_calls(self, make: Make, text: str, message: str) -> None:
        assert refused(make, text) == message

    def test_a_first_call_that_fails(self, make: Make) -> None:
        text = plain("self.qkv = nn.Linear(12 * num_heads // 3, 36 * embed_dim // 12)")
        assert refused(make, text).startswith("it cannot be called, in any of float32, float64, bfloat16, float16: ")


BOOLEANS_ONLY = """
class Written(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        q, k, v = (split(x, self.heads) for x in (self.q_proj(query), self.k_proj(key), self.v_proj(value)))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask is not None:
            boolean = attn_mask.dtype is torch.bool
            scores = scores.masked_fill(attn_mask, -torch.inf) if boolean else scores + attn_mask
        if key_padding_mask is not None:
            scores = torch.where(~key_padding_mask[:, None, None], scores, -torch.inf)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_a_padding_mask_stays_boolean_next_to_a_float_mask_where_no_other_is_taken(make: Make) -> None:
    result = make(BOOLEANS_ONLY, "Written")
    judge = Judge(result, "float64")
    both = Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED, padding=Padding.RIGHT)
    for case in judge.cases(both):
        judge.assert_conforms(case)
    assert judge.tally.checks == 1
    assert not judge.tally.failures
