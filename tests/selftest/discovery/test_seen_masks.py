"""What is seen of masks and of other parts of a call whose names promise nothing: a right one is not accused."""

import pytest

from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.conventions import EmptyRow, PaddedTokens, Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing
from attention_conformance.tests.selftest.discovery.test_given_forms import text_of

LATER = "torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)"
LONGEST = {
    "sizes": "dim, max_T, heads",
    "init": "self.most = max_T",
    "before": "assert self.most >= max(99, x.shape[1])",
}
HIDDEN = "torch.finfo(s.dtype).min"


def changes(masked: str) -> dict[str, str]:
    return {"inputs": "x, mask=None", "masked": f"{masked}"}


def test_one_that_is_always_causal_is_judged_with_a_mask_that_is_added(make: Make) -> None:
    masked = f"s = s.masked_fill({LATER}, -torch.inf) + (0.0 if mask is None else mask)"
    made = make(text_of(changes(masked)))
    assert made.claims.premises.causal
    assert {Feature.FLOAT_MASK, Feature.MASK_GRADIENT} == made.claims.features & {
        Feature.BOOL_MASK,
        Feature.FLOAT_MASK,
        Feature.MASK_GRADIENT,
    }
    assert_conforms(made)


def test_a_mask_in_place_of_the_causal_one_is_judged(make: Make) -> None:
    masked = f"s = s.masked_fill({LATER} if mask is None else mask == 0, -torch.inf)"
    made = make(text_of(changes(masked)))
    assert "a mask takes the place of its own causal one" in made.about
    assert_conforms(made)


def test_ones_that_hide_are_no_numbers_to_add(make: Make) -> None:
    made = make(text_of(changes("s = s if mask is None else s + mask * -1e9")))
    assert "ones in it mask keys" in made.about
    assert Feature.BOOL_MASK in made.claims
    assert Feature.FLOAT_MASK not in made.claims


@pytest.mark.parametrize(
    "after", ["s.masked_fill(~(m[:, None] & m[:, :, None])[:, None], {})", "s * m[:, None, :, None]"]
)
def test_padding_that_hides_tokens_as_queries_is_judged_by_the_others(make: Make, after: str) -> None:
    keys = f"s.masked_fill(~m[:, None, None], {HIDDEN})"
    masked = f"m = torch.ones(x.shape[:2]).bool() if mask is None else mask; s = {keys}; s = {after.format(HIDDEN)}"
    made = make(text_of(changes(masked)))
    assert "padded tokens are hidden as queries, too (padded-tokens=unspecified)" in made.about
    assert Feature.KEY_PADDING in made.claims
    assert_conforms(made)


@pytest.mark.parametrize("slip", ["", "seen[:, :1] = True; "])
def test_padded_tokens_that_see_themselves_are_those_of_the_candidate_alone(make: Make, slip: str) -> None:
    own = "mask[:, None] | torch.eye(x.shape[1], dtype=torch.bool)"
    masked = f"seen = torch.ones(1, 1, 1).bool() if mask is None else {own}; {slip}"
    made = make(text_of(changes(f"{masked}s = s.masked_fill(~seen[:, None], -torch.inf)")))
    assert made.claims.conventions.padded_tokens is PaddedTokens.UNSPECIFIED
    if not slip:
        assert_conforms(made)
        return
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


def test_padding_of_keys_alone_is_claimed(make: Make) -> None:
    made = make(text_of(changes("s = s if mask is None else s.masked_fill(~mask[:, None, None], -torch.inf)")))
    assert Feature.KEY_PADDING in made.claims
    assert_conforms(made)


def test_a_part_of_the_shape_of_weights_for_one_width_alone_is_none(make: Make) -> None:
    made = make(text_of({"after": "return self.out(x), v"}))
    assert Feature.WEIGHTS not in made.claims
    assert "part 1 of its answer is ignored" in made.about


def test_a_fixed_rate_of_dropout_is_not_drawn(make: Make) -> None:
    made = make(
        "class f(nn.Module):\n    def __init__(self, d_head):\n        super().__init__()\n"
        "        self.scale, self.drop = d_head ** -0.5, nn.Dropout(0.1)\n"
        "    def forward(self, q, k, v):\n        return self.drop((q @ k.mT * self.scale).softmax(-1)) @ v"
    )
    assert_conforms(made)


def test_a_function_is_judged_in_the_type_that_it_states(make: Make) -> None:
    made = make(
        "def f(q, k, v, dtype=torch.float32):\n    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)\n"
        "    return p.to(dtype).to(v) @ v"
    )
    assert made.claims.dtypes == ("float32",)
    assert_conforms(made)


def test_a_published_flag_promises_no_floats_of_a_mask_of_another_name(make: Make) -> None:
    masked = f"s = s.masked_fill({LATER}, {HIDDEN}) if is_causal else s\n"
    masked += "        s = s if mask is None else s.masked_fill(mask == 0, -torch.inf)"
    made = make(text_of({"inputs": "x, mask=None, is_causal=False", "masked": masked}))
    assert {Feature.BOOL_MASK, Feature.CAUSAL} <= made.claims.features
    assert Feature.FLOAT_MASK not in made.claims


def test_a_number_of_samples_is_built_large(make: Make) -> None:
    cache = {"sizes": "max_batch_size, dim, heads", "init": "self.most = max_batch_size"}
    assert_conforms(make(text_of({**cache, "before": "assert x.shape[0] <= self.most and self.most > 12"})))


def test_the_name_attn_mask_alone_promises_no_floats_where_zeros_hide(make: Make) -> None:
    masked = "s = s if attn_mask is None else s.masked_fill(attn_mask == 0, -torch.inf)"
    made = make(text_of({"inputs": "x, attn_mask=None", "masked": masked, **LONGEST}))
    assert Feature.BOOL_MASK in made.claims
    assert Feature.FLOAT_MASK not in made.claims
    assert_conforms(made)


def test_no_more_tokens_than_a_table_has_rows(make: Make) -> None:
    table = {"sizes": "dim, max_len, heads", "init": "self.register_buffer('rows', torch.zeros(max_len, 1))"}
    made = make(text_of({**table, "inputs": "x, y", "y": "y", "before": "y = y + self.rows[: y.shape[1]]"}))
    longer = fit(Case().sized(query_length=4000, key_length=5000), made.claims)
    assert isinstance(longer, Case)
    assert (longer.sizes.query_length, longer.sizes.key_length) == (2048, 2048)


@pytest.mark.parametrize("stated", ["heads must be divisible by num_kv_heads", "num_heads % self.n_kv_heads"])
def test_heads_that_divide_among_fewer_say_nothing_of_the_width(make: Make, stated: str) -> None:
    assert make(text_of({"init": f"assert dim % 1 == 0, '{stated}'"})).construct is None


def test_what_true_means_is_seen_where_rows_are_mixed_up(make: Make) -> None:
    masked = "s = s if mask is None else s.masked_fill(mask == 0, -torch.inf)"
    text = text_of({"inputs": "x, context, mask=None", "y": "context", "masked": masked})
    made = make(text.replace(".transpose(1, 2).flatten(2)", ".reshape(x.shape)"))
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND


ADDED_TO = "s = s if mask is None else s + {}"
OF_FUNCTIONS = {
    "keys": ("(1.0 - mask[:, None, None].to(s.dtype)) * -10000.0", Feature.KEY_PADDING, "is one of keys"),
    "queries": ("(1.0 - mask[:, None, :, None].to(s.dtype)) * -1e4", Feature.KEY_PADDING, "changes nothing"),
    "numbers": ("(1 - mask) * -1e9", Feature.BOOL_MASK, "as numbers 0 and 1"),
    "five axes": ("mask.expand(1, 1, 1, 1, 9, 9)", None, "masks not claimed"),
}


@pytest.mark.parametrize(("added", "feature", "note"), OF_FUNCTIONS.values(), ids=OF_FUNCTIONS)
def test_a_mask_of_a_function_is_claimed_in_the_form_that_has_an_effect(
    make: Make, added: str, feature: Feature | None, note: str
) -> None:
    masked = ADDED_TO.format(added)
    made = make(
        f"def f(q, k, v, mask=None):\n    s = q @ k.mT / q.shape[-1] ** 0.5\n    {masked}\n    return s.softmax(-1) @ v"
    )
    masks = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.KEY_PADDING} & made.claims.features
    assert masks == ({feature} if feature else set())
    assert note in made.about
    if note == "is one of keys":
        assert "a row without keys gets what it gets without the mask" in made.stated
        assert_conforms(made)


def test_masks_that_are_added_are_seen_among_scores_that_are_not_scaled(make: Make) -> None:
    made = make("def f(q, k, v, mask=None): return (q @ k.mT + (0 if mask is None else mask)).softmax(-1) @ v")
    assert Feature.FLOAT_MASK in made.claims
    assert Feature.BOOL_MASK not in made.claims


def test_valid_lengths_of_samples_alone_are_judged_as_these(make: Make) -> None:
    kept = "(torch.arange(k.shape[2]) < valid_lens[:, None])[:, None, None]"
    made = make(f"def f(q, k, v, valid_lens=None): return attend(q, k, v, None if valid_lens is None else {kept})[0]")
    assert "valid lengths of each query not claimed" in made.about
    fitted = fit(Case(padding=Padding.QUERY_LENGTHS), made.claims)
    assert isinstance(fitted, Case)
    assert fitted.padding is Padding.LENGTHS


def test_a_mask_that_raises_only_where_it_is_not_zero_is_not_added(make: Make) -> None:
    masked = "s = s.masked_fill(attn_mask[:, None], -torch.inf) if attn_mask is not None and attn_mask.any() else s"
    made = make(text_of({"inputs": "x, attn_mask=None", "masked": masked}))
    assert Feature.FLOAT_MASK not in made.claims
    assert Feature.BOOL_MASK in made.claims


def test_padding_that_is_ignored_says_nothing_of_rows_without_keys(make: Make) -> None:
    masked = "s = s if attn_mask is None else s.masked_fill(~attn_mask, -torch.inf)"
    inputs = {"inputs": "x, context=None, attn_mask=None, **_", "y": "(x if context is None else context)"}
    text = text_of({**inputs, "masked": masked}).replace("s.softmax(-1)", "s.softmax(-1).nan_to_num()")
    made = make(text)
    assert Feature.BOOL_MASK in made.claims
    assert "without the mask" not in made.about


@pytest.mark.parametrize(
    ("masked", "claimed"),
    [
        ("s.masked_fill(~m[:, None, None], -torch.inf)", True),
        ("s.masked_fill(~m[:1, None, None], -torch.inf)", True),
        ("s.masked_fill(~m[:, None, :, None], 0.0)", False),
        ("s", False),
    ],
    ids=["right", "of the first sample", "of queries", "ignored"],
)
def test_lengths_are_judged_where_they_hide_keys_of_one_sample_at_least(make: Make, masked: str, claimed: bool) -> None:
    kept = "m = None if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]"
    given = {"inputs": "x, lengths=None", "masked": f"{kept}; s = s if m is None else {masked}"}
    made = make(text_of(given))
    assert (Feature.VALID_LENS in made.claims) is claimed
    assert ("lengths" in made.findings) is not claimed


def test_a_mask_of_keys_that_is_wrong_for_several_samples_is_judged(make: Make) -> None:
    made = make(
        text_of(changes("s = s if mask is None else s.masked_fill(~mask.roll(1, 0)[:, None, None], -torch.inf)"))
    )
    assert Feature.KEY_PADDING in made.claims
    assert "mask is one of keys, and hides other keys" in made.about


@pytest.mark.parametrize(("doc", "hidden", "wrong"), [("", "~m", None), ("0/1", "m == 0", False), ("ints", "~m", True)])
def test_masks_of_integers_are_another_way_to_call_where_they_are_documented(
    make: Make, doc: str, hidden: str, wrong: bool | None
) -> None:
    made = make(f"""
def f(q, k, v, mask=None):
    "mask: booleans, {doc}"
    s, m = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, True if mask is None else mask
    e = np.exp(np.where(np.asarray({hidden if hidden == "m == 0" else "np.invert(m)"}, bool), -1e30, s))
    return e / e.sum(-1, keepdims=True) @ v
""")
    assert ("with its masks as integers" in made.alternatives) is (wrong is not None)
    (found,) = run(made, ("relations.alternatives",), ("float64",))
    assert (found.status is Status.FAIL) is bool(wrong)


@pytest.mark.parametrize("refusal", ["raise NotImplementedError", "raise ValueError('no masks')"])
def test_a_promised_mask_that_is_refused_is_not_claimed(make: Make, refusal: str) -> None:
    taken = "def f(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):"
    refused = f"    if attn_mask is not None:\n        {refusal}"
    made = make(f"{taken}\n{refused}\n    return attend(query, key, value, None, is_causal, scale)[0]\n")
    assert not {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT} & made.claims.features
    assert Feature.CAUSAL in made.claims.features
    assert_conforms(made)


OF_LENGTHS = """
def f(query, key, value, valid_lens=None):
    if valid_lens is not None:
        {first}
        seen = torch.arange(key.shape[-2]) < valid_lens[:, None, None, None]
        return attend(query, key, value, seen)[0]
    return attend(query, key, value)[0]
"""
REFUSING = "if (valid_lens < 1).any(): raise ValueError('each sample needs a key')"
WHOLE = "valid_lens = valid_lens.where(valid_lens > 0, key.shape[-2])"


@pytest.mark.parametrize(
    ("first", "judged", "answer"),
    [("", True, EmptyRow.NAN), (REFUSING, False, EmptyRow.ZEROS), (WHOLE, True, EmptyRow.ZEROS)],
)
def test_a_length_of_0_is_judged_as_it_is_answered(make: Make, first: str, judged: bool, answer: EmptyRow) -> None:
    """Unless it is refused; the answer to all keys is none to a length of 0."""
    made = make(OF_LENGTHS.format(first=first))
    assert isinstance(fit(Case(padding=Padding.EMPTY_LENGTHS), made.claims), Case) is judged
    assert made.claims.conventions.empty_row_padding is answer


ZEROED = "value, valid_lens = value * (valid_lens > 0)[:, None, None, None], valid_lens.clamp(min=1)"


@pytest.mark.parametrize(("first", "judged"), [(WHOLE, True), ("", True), (ZEROED, False)])
def test_a_length_of_0_next_to_a_padding_mask(make: Make, first: str, judged: bool) -> None:
    """Another known answer than that of padding is not judged; what is none is a mistake."""
    text = OF_LENGTHS.replace("valid_lens=None", "key_padding_mask=None, valid_lens=None").replace(
        "    return attend(query, key, value)[0]\n",
        "    seen = None if key_padding_mask is None else key_padding_mask[:, None, None]\n"
        "    return attend(query, key, value, seen)[0]\n",
    )
    made = make(text.format(first=first))
    assert Feature.KEY_PADDING in made.claims
    assert made.claims.conventions.empty_row_padding is EmptyRow.NAN
    assert isinstance(fit(Case(padding=Padding.EMPTY_LENGTHS), made.claims), Case) is judged


INDICES = '''
class f(nn.Module):
    """Attention.

    Args: dim, mask
        dim (int): of a head
        mask (torch.Tensor): tensor containing indices to be masked
    """

    def __init__(self, dim):
        super().__init__()
        self.root = np.sqrt(dim)

    def forward(self, query, key, value, mask=None):
        score = query @ key.mT / self.root
        if mask is not None:
            score.masked_fill_(mask.view(score.size()), -torch.inf)
        attn = F.softmax(score, -1)
        return attn @ value, attn
'''


def test_a_line_of_names_is_no_parameter(make: Make) -> None:
    """Integers are the type of another parameter below it, and not of the mask."""
    assert not failing(make(INDICES), "effects.inputs", "masks.*")


@pytest.mark.parametrize(("fill", "wrong"), [("masked_fill", False), ("masked_fill_", True)])
def test_the_flag_is_not_written_into_the_callers_mask(make: Make, fill: str, wrong: bool) -> None:
    made = make(f"""
def f(q, k, v, attn_bias=None, causal=False):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        attn_bias = s.new_zeros(s.shape[-2:]) if attn_bias is None else attn_bias
        attn_bias = attn_bias.{fill}(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (s if attn_bias is None else s + attn_bias).softmax(-1) @ v
""")
    assert failing(made, "effects.inputs", "masks.float", "causal.flag") == ({"effects.inputs"} if wrong else set())


LOGARITHMS = """
def f(q, k, v, {name}=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if {name} is not None:
        s = s.masked_fill(~{name}{axes}, torch.finfo(s.dtype).min)
    return {times}(s - s.logsumexp(-1, keepdim=True)).exp() @ v
"""


@pytest.mark.parametrize(("name", "axes"), [("attn_mask", ""), ("key_padding_mask", "[:, None, None]")])
@pytest.mark.parametrize(("times", "wrong"), [("", False), ("2 * ", True)])
def test_a_row_without_keys_may_get_the_sum_of_values(
    make: Make, name: str, axes: str, times: str, wrong: bool
) -> None:
    made = make(LOGARITHMS.format(name=name, axes=axes, times=times))
    assert "a row without keys gets the sum of all values" in made.stated
    assert bool(failing(made, "masks.*", "scores.dot-product", dtype="float64")) is wrong


@pytest.mark.parametrize(("times", "wrong"), [("", False), ("2 * ", True)])
def test_a_row_without_keys_may_get_another_answer_in_float64(make: Make, times: str, wrong: bool) -> None:
    made = make(f"""
def f(q, k, v, mask=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        s = torch.where(mask, s, torch.tensor(torch.finfo(s.dtype).min, dtype=torch.float32))
    return {times}s.softmax(-1) @ v
""")
    assert any("in float32, and another answer in float64" in each for each in made.stated)
    assert bool(failing(made, "masks.*", "scores.dot-product", dtype="float64")) is wrong
