"""Functions as seen: what no name promises and the field answers in several ways is taken as it is, and stated."""

import pytest

from attention_conformance.spec.conventions import Alignment, EmptyRow, ProductPrecision, SoftmaxPrecision
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

SCORES = "q @ k.mT / math.sqrt(q.shape[-1])"


@pytest.mark.parametrize(
    "body",
    [
        "(q.float() @ k.float().mT / math.sqrt(q.shape[-1])).softmax(-1).to(q.dtype) @ v",
        f"({SCORES}).softmax(-1, dtype=torch.float32).to(q.dtype) @ v",
        "(q @ k.mT / torch.sqrt(torch.tensor(q.shape[-1], dtype=torch.float32))).softmax(-1) @ v",
    ],
    ids=["all of it", "softmax", "scale"],
)
def test_what_is_computed_in_float32(make: Make, body: str) -> None:
    made = make(f"def f(q, k, v):\n    return {body}")
    assert made.claims.conventions.product_precision is ProductPrecision.FLOAT32
    assert "computes in float32 for inputs in float64" in made.about
    assert_conforms(made)


def test_what_is_computed_in_float64_or_in_bfloat16_is_not_taken_for_it(make: Make) -> None:
    for dtype in ("float64", "bfloat16"):
        made = make(f"def f(q, k, v):\n    return ({SCORES}).softmax(-1, dtype=torch.{dtype}).to(q.dtype) @ v")
        assert made.claims.conventions.product_precision is ProductPrecision.WORKING


MEAN = """
def f(q, k, v):
    s, o = {scores}, 0 * v[..., :1, :] + 0 * q[..., :1]
    so_far = s.logcumsumexp(-1)
    for j in {keys}:
        o = o + (s[..., j, None] - so_far[..., j, None]).exp() * (v[..., j, None, :] - o)
    return o
"""


def test_a_running_mean_is_seen_and_its_error_is_not_an_accusation(make: Make) -> None:
    made = make(MEAN.format(scores=SCORES, keys="range(k.shape[-2])"))
    assert made.claims.conventions.softmax_precision is SoftmaxPrecision.ROW
    assert any("running mean" in each for each in made.stated)
    clauses = ("numerics.exact", "numerics.bound", "softmax.late-maximum", "gradients.value")
    assert {each.status for each in run(made, clauses, ("float32",))} == {Status.PASS}


def test_a_wrong_running_mean_does_not_conform(make: Make) -> None:
    made = make(MEAN.format(scores=SCORES, keys="range(max(1, k.shape[-2] - 1))"))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


MERGED = """
def f(q, k, v):
    whole, so_far = None, None
    for start in range(0, k.shape[-2], 4):
        s = ({scores})[..., start : start + 4]
        out, log = s.softmax(-1) @ v[..., start : start + 4, :], s.logsumexp(-1, keepdim=True)
        if whole is not None:
            both = torch.logaddexp(so_far, log)
            out = {merged}
            log = both
        whole, so_far = out, log
    return whole
"""


def test_blocks_merged_by_what_a_share_leaves_are_seen_and_judged_by_their_error(make: Make) -> None:
    made = make(MERGED.format(scores=SCORES, merged="whole - (log - both).exp() * (whole - out)"))
    assert made.claims.conventions.softmax_precision is SoftmaxPrecision.ROW
    clauses = ("numerics.bound", "gradients.any-scale", "gradients.value", "shapes.large")
    assert {each.status for each in run(made, clauses, ("float32",))} == {Status.PASS}


def test_blocks_merged_by_the_share_of_each_are_no_such_mean(make: Make) -> None:
    made = make(MERGED.format(scores=SCORES, merged="(so_far - both).exp() * whole + (log - both).exp() * out"))
    assert made.claims.conventions.softmax_precision is SoftmaxPrecision.WORKING


def test_a_usual_sum_is_no_running_mean(make: Make) -> None:
    for body in (f"({SCORES}).softmax(-1) @ v", f"(({SCORES}).softmax(-1) + 1e-7) @ v"):
        made = make(f"def f(q, k, v):\n    return {body}")
        assert made.claims.conventions.softmax_precision is SoftmaxPrecision.WORKING


def test_a_row_without_keys_under_a_published_name(make: Make) -> None:
    made = make(
        f"def f(q, k, v, attn_mask):\n    return ({SCORES}).masked_fill(~attn_mask, -torch.inf).softmax(-1) @ v"
    )
    assert made.claims.conventions.empty_row_bool is EmptyRow.NAN
    assert "a row without keys gets nan" in made.stated


def test_a_mask_and_a_bias_have_their_own_rows_without_keys(make: Make) -> None:
    """A filled mask next to an added bias, as in many functions in memory-efficient form."""
    made = make(f"""
def f(q, k, v, mask=None, attn_bias=None):
    s = {SCORES}
    s = s if attn_bias is None else s + attn_bias
    return (s if mask is None else s.masked_fill(~mask, -torch.finfo(s.dtype).max)).softmax(-1) @ v
""")
    conventions = made.claims.conventions
    assert (conventions.empty_row_bool, conventions.empty_row_float) == (EmptyRow.UNIFORM, EmptyRow.NAN)
    verdicts = run(made, ("masks.*",), ("float32",))
    assert {each.clause for each in verdicts if each.status is Status.FAIL} == set()


OF_PUBLISHED, OF_ITS_OWN = "query, key, value", "q, k, v"


@pytest.mark.parametrize(
    ("flag", "names", "words", "seen"),
    [
        ("causal", OF_PUBLISHED, "", Alignment.BOTTOM_RIGHT),
        ("is_causal", OF_ITS_OWN, "", Alignment.BOTTOM_RIGHT),
        ("is_causal", OF_PUBLISHED, "", Alignment.TOP_LEFT),
        ("is_causal", OF_PUBLISHED, "Causal masks are aligned to the bottom right.", Alignment.BOTTOM_RIGHT),
        ("is_causal", OF_PUBLISHED, "The queries are the last Lq of Lk positions.", Alignment.BOTTOM_RIGHT),
        ("is_causal", OF_PUBLISHED, "query (B, H, L, d): heads are divided into the last dim.", Alignment.TOP_LEFT),
        ("is_causal", OF_PUBLISHED, "Queries and keys have components in the last axis.", Alignment.TOP_LEFT),
    ],
)
def test_the_corner_of_a_flag_whose_name_promises_none(
    make: Make, flag: str, names: str, words: str, seen: Alignment
) -> None:
    made = make(f"""
def f({names}, {flag}=False):
    {words!r}
    q, k, v = {names}
    s = {SCORES}
    later = torch.ones_like(s, dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2])
    return (s.masked_fill(later, -torch.inf) if {flag} else s).softmax(-1) @ v
""")
    assert made.claims.conventions.causal_alignment is seen


SLOPED = """
def f(q, k, v, alibi_slopes=None):
    s = SCORES
    if alibi_slopes is None:
        return s.softmax(-1) @ v
    m, ahead = READ, torch.arange(s.shape[-1]) - torch.arange(s.shape[-2])[:, None]
    return (s - m * ahead.abs()).softmax(-1) @ v
""".replace("SCORES", SCORES)


@pytest.mark.parametrize(
    ("read", "claimed"),
    [
        ("alibi_slopes[..., None, None]", True),
        ("(alibi_slopes if alibi_slopes.ndim == 1 else alibi_slopes[0])[:, None, None]", True),
        ("alibi_slopes[:, None, None]", False),
    ],
    ids=["each", "first", "shared"],
)
def test_slopes_of_samples_are_judged_where_equal_ones_are_taken(make: Make, read: str, claimed: bool) -> None:
    assert (Feature.ALIBI_SAMPLES in make(SLOPED.replace("READ", read)).claims) is claimed


def test_a_bias_that_has_to_be_given_is_one_of_zeros_where_a_case_has_none(make: Make) -> None:
    made = make(f"def f(q, k, v, bias):\n    return torch.addcmul({SCORES}, bias, torch.ones(())).softmax(-1) @ v")
    assert {Feature.GRADIENTS, Feature.MASK_GRADIENT} <= made.claims.features


ITS_OWN_HEADS = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, key, value, need_weights=False):
        given = (self.q(query), self.k(key), self.v(value))
        q, k, v = (SPLIT.unflatten(-1, (self.h, -1)).transpose(1, 2) for x in given)
        return self.o(attend(q, k, v)[0].transpose(1, 2).flatten(2)[..., : query.shape[-1]]), None
"""


@pytest.mark.parametrize(
    ("split", "status"),
    [("x", Status.PASS), ("nn.functional.pad(x, (0, -x.shape[-1] % self.h))", Status.FAIL)],
    ids=["first call", "never"],
)
def test_heads_that_do_not_divide_the_width_may_be_refused_in_the_first_call(
    make: Make, split: str, status: Status
) -> None:
    (verdict,) = run(make(ITS_OWN_HEADS.replace("SPLIT", split)), ("errors.heads",), ("float32",))
    assert verdict.status is status


@pytest.mark.parametrize(
    ("stated", "binding"),
    [
        ("Scores and the softmax are computed in float32.", True),
        ("* ``upcast``: the scores and the softmax are computed in float32.", False),
        ("Args:\n        upcast (bool): the scores are computed in float32.", False),
        ("With ``upcast`` the scores are computed in float32.", False),
        ("Scores are computed in float32 where attn_mask is added.", True),
    ],
)
def test_scores_in_float32_bind_where_no_option_makes_them_so(make: Make, stated: str, binding: bool) -> None:
    document = f'"""Softmax attention.\n\n    {stated}\n    """'
    made = make(f"def f(q, k, v, upcast=None):\n    {document}\n    return ({SCORES}).softmax(-1) @ v")
    assert (Feature.WIDE_SCORES in made.claims.features) is binding
