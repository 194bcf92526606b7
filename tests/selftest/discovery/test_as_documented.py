"""What documentation states of precision, shared heads and weights: it binds, or is no mistake."""

import pytest

from attention_conformance.implementations.discovery.as_documented import BASE_TWO, NARROW_LOGS, NATURAL, TILED
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.conventions import GroupOrder, LogBase
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing, refused

GROUPS = '''
def f(q, k, v):
    """q (B, Hq, L, D), k and v (B, Hkv, L, D). {text}"""
    n = q.shape[1] // max(1, k.shape[1])
    return attend(q, k.{repeated}, v.{repeated})[0]
'''
STATED, IN_TURN, GROUPED = "Query head h uses kv head ``h % Hkv``.", "repeat(1, n, 1, 1)", "repeat_interleave(n, 1)"


@pytest.mark.parametrize(
    ("text", "repeated", "wrong"), [(STATED, IN_TURN, False), (STATED, GROUPED, True), ("", IN_TURN, True)]
)
def test_heads_that_are_repeated_one_after_another(make: Make, text: str, repeated: str, wrong: bool) -> None:
    made = make(GROUPS.format(text=text, repeated=repeated))
    assert (made.claims.conventions.group_order is GroupOrder.TILED) is bool(text)
    assert bool(failing(made, "grouped.order")) is wrong


@pytest.mark.parametrize(
    ("text", "tiled"),
    [
        ("Query head h reads kv head h mod num_kv_heads.", True),
        ("The kv head of query head h is h % Hkv.", True),
        ("Query head h uses kv head h // (Hq // Hkv) (Hq % Hkv == 0).", False),
        ("Query head h uses kv head h // g, with Hq % Hkv == 0.", False),
        ("Query head h uses kv head h // g, not h % Hkv.", False),
    ],
)
def test_which_texts_state_the_order(text: str, tiled: bool) -> None:
    assert bool(TILED.search(text)) is tiled


@pytest.mark.parametrize(
    ("text", "binary", "narrow"),
    [
        ("lse2 (n, h) float32, BASE TWO: log2(sum(exp(scores)))", True, True),
        ("Returns the base-2 log-sum-exp", True, False),
        ("logsumexp (natural log), computed as log2", False, False),
        ("lse: natural log-sum-exp, converted from base 2", False, False),
        ("the log-sum-exp; scores are multiplied by log2(e)", False, False),
        ("a float32 log-sum-exp", False, True),
        ("the log-sum-exp has the dtype of q (float32 or float64)", False, False),
        ("the log-sum-exp is not always float32", False, False),
    ],
)
def test_which_texts_state_a_log_sum_exp(text: str, binary: bool, narrow: bool) -> None:
    assert (bool(BASE_TWO.search(text)) and not NATURAL.search(text)) is binary
    assert bool(NARROW_LOGS.search(text)) is narrow


def test_a_chosen_order_stays_chosen(make: Make) -> None:
    made = make(GROUPS.format(text=STATED, repeated=IN_TURN), group_order="consecutive")
    assert made.claims.conventions.group_order is GroupOrder.CONSECUTIVE


LOGS = '''
def f(q, k, v):
    """Returns (out, lse), lse float32{base}: log of the sum of the exponentials of the scores."""
    out, _, lse = attend(q, k, v)
    return out, (lse{times}).float()
'''


@pytest.mark.parametrize(
    ("base", "times", "wrong"),
    [("", "", False), (", base two", " / math.log(2)", False), (", base two", "", True)],
)
def test_a_log_sum_exp_as_it_is_documented(make: Make, base: str, times: str, wrong: bool) -> None:
    made = make(LOGS.format(base=base, times=times))
    assert Feature.LOG_SUM_EXP in made.claims.features
    assert "float64" not in made.claims.dtypes
    assert (made.claims.conventions.log_sum_exp_base is LogBase.TWO) is bool(base)
    assert bool(failing(made, "softmax.log-sum-exp")) is wrong


SPARSE = '''
def f(q, k, v):
    """Sparsemax attention."""
    z = q @ k.mT * q.shape[-1] ** -0.5
    ordered = z.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = (torch.arange(1, z.shape[-1] + 1) * ordered > sums).sum(-1, keepdim=True)
    return {weights} @ v
'''


def test_what_weighs_keys_otherwise_by_its_documentation_is_not_judged(make: Make) -> None:
    message = refused(make, SPARSE.format(weights="(z - sums.gather(-1, count - 1) / count).clamp_min(0)"))
    assert "by its documentation it weighs keys by 'Sparsemax'" in message


LINEAR = '''
def f(q, k, v):
    """Causal linear attention."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weights = (q @ k.mT).tril()
    return weights / weights.sum(-1, keepdim=True) @ v
'''


def test_what_weighs_earlier_keys_otherwise_is_not_judged(make: Make) -> None:
    assert "by its documentation it weighs keys by 'linear attention'" in refused(make, LINEAR)


DISTANCES = """
def f(q, k, v):
    {text}
    scores = {scores}
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v
"""
DISTANCE = "-0.5 * (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)"


@pytest.mark.parametrize("named", ["squared distances", "squared euclidean distance", "L2 attention"])
def test_distances_in_place_of_products_are_not_judged_where_they_are_documented(make: Make, named: str) -> None:
    message = refused(make, DISTANCES.format(text=f"'Softmax of minus half the {named}.'", scores=DISTANCE))
    assert f"it weighs keys by {named!r}" in message


def test_distances_fail_where_products_are_documented(make: Make) -> None:
    made = make(DISTANCES.format(text="'Softmax of scaled products.'", scores=DISTANCE))
    assert failing(made, "scores.dot-product")


SIGMOIDS = """
class SigmoidAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return self.proj(({weights} @ v).transpose(1, 2).flatten(2))
"""


def test_a_module_that_weighs_keys_otherwise_by_its_name_is_not_judged_as_a_softmax(make: Make) -> None:
    message = refused(make, SIGMOIDS.format(weights="scores.sigmoid()"), "SigmoidAttention")
    assert "it weighs keys by 'Sigmoid Attention'" in message


def test_a_module_with_a_softmax_is_judged_whatever_its_name_is(make: Make) -> None:
    made = make(SIGMOIDS.format(weights="scores.softmax(-1)"), "SigmoidAttention")
    assert not failing(made, "scores.dot-product")


def test_a_mistake_is_no_other_weight_that_documentation_denies(make: Make) -> None:
    text = SPARSE.replace("Sparsemax attention.", "Exact softmax attention, unlike linear attention.")
    assert failing(make(text.format(weights="z.softmax(-2)")), "scores.dot-product")


def test_a_softmax_is_judged_whatever_its_documentation_names(make: Make) -> None:
    made = make(SPARSE.format(weights="z.softmax(-1)"))
    assert not failing(made, "scores.dot-product")


ONE_LENGTH = """
def f(Q, K, V{window}):
    {doc}
    n, d = Q.shape
    {read}
    out = np.zeros((n, {width}), Q.dtype)
    for i in range(n):
        near = slice({first}, min(n, {last}))
        s = Q[i] @ K[near].T / d**0.5
        e = np.exp(s - s.max())
        out[i] = e / e.sum() @ V[near]
    return out
"""
WHOLE = {"window": "", "first": "0", "last": "n", "read": "", "doc": "", "width": "d"}
NEAR = {**WHOLE, "window": ", window_size", "first": "max(0, i - window_size)", "last": "i + window_size + 1"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (WHOLE, False),
        ({**WHOLE, "read": "assert K.shape[1] == d"}, True),
        ({**WHOLE, "read": "k = K + 0.0; assert k.shape[1] == d"}, True),
        ({**WHOLE, "doc": '"""Q: (Lq, d), K: (Lk, d), V: (Lk, d)"""'}, True),
        ({**NEAR, "width": "V.shape[1]"}, False),
    ],
    ids=["only that of queries", "keys are read", "keys are read by another name", "keys are documented", "a window"],
)
def test_one_length_by_the_code(make: Make, text: dict[str, object], wrong: bool) -> None:
    made = make(ONE_LENGTH.format(**text))
    assert (Feature.CROSS in made.claims.features) is wrong
    assert bool(failing(made, "scores.dot-product")) is wrong


OF_ZERO_KEY = """
def softmax_one(s, extra={extra}):
    m = s.amax(-1, keepdim=True).clamp_min(0)
    e = (s - m).exp()
    return e / (e.sum(-1, keepdim=True) + extra * (-m).exp())

def f(q, k, v, causal=False):
    \"\"\"{text}\"\"\"
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu({first}), -torch.inf)
    return {function}(s) @ v
"""
QUIET_MODULE = """
class f(nn.Module):
    \"\"\"{text}\"\"\"

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        w = torch.cat([s, s.new_full((*s.shape[:-1], 1), {score})], -1).softmax(-1)[..., :-1]
        return self.out_proj((w @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("text", "function", "extra", "first", "wrong"),
    [
        ("exp(s) / (1 + sum(exp(s)))", "softmax_one", 1, 1, False),
        ("Attention.", "softmax_one", 1, 1, False),
        ("Attention.", "(lambda s: softmax_one(s))", 1, 1, False),
        ("Attention.", "(lambda s, g=softmax_one: g(s))", 1, 1, True),
        ("Attention with softmax1.", "softmax_one", 2, 1, True),
        ("Attention with softmax1.", "softmax_one", 1, 2, True),
        ("Attention, where softmax_one would not give it.", "(lambda s: s.softmax(-1))", 0, 1, False),
    ],
)
def test_a_softmax_with_one_more_term(
    make: Make, text: str, function: str, extra: int, first: int, wrong: bool
) -> None:
    made = make(OF_ZERO_KEY.format(text=text, function=function, extra=extra, first=first))
    assert bool(failing(made, "scores.*", "softmax.*", "causal.square", "relations.shift-keys")) is wrong


@pytest.mark.parametrize(
    ("text", "score", "wrong"),
    [("With softmax1.", 0.0, False), ("With softmax1.", 0.5, True), ("It attends.", 0.0, True)],
)
def test_the_same_in_a_module(make: Make, text: str, score: float, wrong: bool) -> None:
    made = make(QUIET_MODULE.format(text=text, score=score))
    assert made.claims.premises.zero_attn is (text == "With softmax1.")
    assert bool(failing(made, "scores.*", "softmax.*")) is wrong


PACKED = """
class f(nn.Module):
    \"\"\"qkv.weight is (3 * dim, dim), {text} ``in_proj_weight`` in ``nn.MultiheadAttention``.\"\"\"

    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, ({shape}, -1)).permute({axes})
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
TOGETHER, EACH_HEAD = ("3, self.h", "2, 0, 3, 1, 4"), ("self.h, 3", "3, 0, 2, 1, 4")


@pytest.mark.parametrize(
    ("text", "form", "wrong"),
    [
        ("the layout of", TOGETHER, False),
        ("the layout of", EACH_HEAD, True),
        ("head by head, unlike", EACH_HEAD, False),
    ],
)
def test_a_packed_matrix_has_the_layout_of_torchs(make: Make, text: str, form: tuple[str, str], wrong: bool) -> None:
    made = make(PACKED.format(text=text, shape=form[0], axes=form[1]))
    assert bool(failing(made, "scores.dot-product", "heads.*", "values.*")) is wrong


STRICT = """
def f(q, k, v):
    \"\"\"{text}\"\"\"
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu({first})
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return s.softmax(-1).masked_fill(hidden, 0.0) @ v
"""


NOT_ITSELF = "A token reads tokens 0 .. t - 1, not itself."


def test_who_does_not_see_its_own_key_is_refused_where_it_states_so(make: Make) -> None:
    with pytest.raises(TargetError, match="does not see its own key"):
        make(STRICT.format(text=NOT_ITSELF, first=0))


@pytest.mark.parametrize(("text", "first", "wrong"), [(NOT_ITSELF, 1, False), ("Attention.", 0, True)])
def test_who_does_not_state_it_or_sees_its_own_key_is_judged(make: Make, text: str, first: int, wrong: bool) -> None:
    made = make(STRICT.format(text=text, first=first))
    assert bool(failing(made, "scores.dot-product", "causal.square")) is wrong


STEPS = """
def f(q, k, v):
    \"\"\"{text}\"\"\"
    kept, answers = torch.zeros_like(k), []
    for t in range(k.shape[2]):
        kept[:, :, t] = k[:, :, t]
        s = torch.einsum("bhd,bhsd->bhs", q[:, :, t], kept[:, :, : t + {more}]) / q.shape[-1] ** 0.5
        answers.append(torch.einsum("bhs,bhsd->bhd", s.softmax(-1), v[:, :, : t + {more}]))
    return torch.stack(answers, 2)
"""


@pytest.mark.parametrize(
    ("text", "more", "wrong"),
    [("Decoding with a ring buffer.", 1, False), ("Attention.", 1, True), ("Decoding.", 2, True)],
)
def test_what_decodes_in_place_need_have_no_gradients(make: Make, text: str, more: int, wrong: bool) -> None:
    made = make(STEPS.format(text=text, more=more))
    assert (Feature.GRADIENTS in made.claims) is (text == "Attention.")
    assert bool(failing(made, "scores.*", "causal.square", "gradients.*")) is wrong


EMPTIED = '''
def f(query, key, value, mask=None, fill=-1e30):
    """Attention.

    {text}
    """
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if mask is None else s.masked_fill(~mask, fill)
    return {answer}
'''
MEAN, NONE = "s.softmax(-1) @ value", "(s.softmax(-1) * (s > fill)) @ value"


@pytest.mark.parametrize(
    ("text", "answer", "bound", "wrong"),
    [
        ("Queries without any key get zeros.", MEAN, True, True),
        ("Queries without any key get zeros.", NONE, False, False),
        ("A query that no key is visible to gives a row of\n    zeros.", MEAN, True, True),
        ("A query that may read no element contributes a zero vector: the bias alone.", MEAN, True, True),
        ("fill: what hides. A fully masked row is zero.", MEAN, False, False),
        ("With `fill` of -inf, a fully masked row gets zeros.", MEAN, False, False),
        ("If asked for, a fully masked row gets zeros.", MEAN, False, False),
        ("A fully masked row does not get zeros.", MEAN, False, False),
        ("A fully masked row (zeros in the mask) sees all.", MEAN, False, False),
        ("The log-sum-exp of a fully masked row is zero.", MEAN, False, False),
    ],
)
def test_rows_without_keys_get_the_zeros_that_are_stated_plainly(
    make: Make, text: str, answer: str, bound: bool, wrong: bool
) -> None:
    made = make(EMPTIED.format(text=text, answer=answer))
    assert any("by its documentation a row without keys" in each for each in made.stated) is bound
    assert bool(failing(made, "masks.empty-row-bool")) is wrong
