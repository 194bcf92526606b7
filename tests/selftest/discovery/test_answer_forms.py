"""Candidates as people write them: answers in other orders and containers, other layouts, classes that are called."""

import pytest

from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Feature
from attention_conformance.spec.premises import NO_PREMISES
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, refused

ANSWERS = {
    "weights first": "def f(q, k, v): return attend(q, k, v)[1::-1]",
    "list": "def f(q, k, v): return [attend(q, k, v)[0]]",
    "dictionary": "def f(q, k, v): return dict(attentions=attend(q, k, v)[1], hidden=attend(q, k, v)[0])",
    "dataclass": """
import dataclasses
@dataclasses.dataclass
class Answer:
    weights: object
    context: object
def f(*, query, key, value): return Answer(*attend(query, key, value)[1::-1])
""",
    "numpy": """
def f(Q, K, V):
    e = np.exp(Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1], dtype=Q.dtype))
    return {"weights": e / e.sum(-1, keepdims=True), "output": e @ V / e.sum(-1, keepdims=True)}
""",
}


@pytest.mark.parametrize("text", ANSWERS.values(), ids=ANSWERS)
def test_the_output_is_recognised_in_an_answer(make: Make, text: str) -> None:
    made = make(text)
    assert (Feature.WEIGHTS in made.claims) is ("list" not in text and "[attend" not in text)
    assert_conforms(made)


SCORES = """
def f(q, k, v):
    qk = q @ k.mT / q.shape[-1] ** 0.5
    return qk.softmax(-1) @ v, NAME
"""


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        (SCORES.replace("NAME", "qk.detach()"), False),
        (SCORES.replace("NAME", "qk.softmax(-1)"), True),
        (SCORES.replace("qk", "weights").replace("NAME", "weights"), True),
    ],
    ids=["scores", "softmax of scores", "called weights"],
)
def test_scores_that_are_returned_by_name_are_no_weights(make: Make, text: str, judged: bool) -> None:
    assert (Feature.WEIGHTS in make(text).claims) is judged


ON_REQUEST = """
def f(q, k, v, return_attn=False, return_lse=False):
    output, weights, total = attend(q, k, v)
    more = (*[weights] * return_attn, *[TOTAL] * return_lse)
    return (output, *more) if more else output
"""


def test_what_is_returned_on_request_is_claimed(make: Make) -> None:
    made = make(ON_REQUEST.replace("TOTAL", "total"))
    assert {Feature.WEIGHTS, Feature.LOG_SUM_EXP} <= made.claims.features
    assert "without return_attn and return_lse" in made.alternatives
    assert_conforms(made)


def test_what_is_wrong_in_an_answer_on_request_is_wrong(make: Make) -> None:
    with pytest.raises(AssertionError, match="log_sum_exp of sample"):
        assert_conforms(make(ON_REQUEST.replace("TOTAL", "0.5 * total")))


def test_a_wrong_output_in_a_dictionary_is_wrong(make: Make) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make("def f(q, k, v): return {'output': attend(q, k, v, scale=1.0)[0]}"))


HEADS_THIRD = """
def f(q, k, v, causal=False):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attend(q, k, v, causal=causal)[0].transpose(1, 2)
"""


def test_a_layout_that_answers_in_any_axes_is_recognised(make: Make) -> None:
    made = make(HEADS_THIRD)
    assert "called in its own layout (B, L, H, d)" in made.about
    assert_conforms(made)


def test_a_layout_is_recognised_in_the_dtype_that_it_takes(make: Make) -> None:
    made = make(f"{HEADS_THIRD.replace('(q, k, v))', '(q, k, v) if torch.finfo(q.dtype).bits == 16)')}")
    assert "called in its own layout (B, L, H, d)" in made.about
    assert made.claims.dtypes == ("bfloat16", "float16")
    assert_conforms(made, "bfloat16")


def test_heads_that_are_mixed_are_no_layout(make: Make) -> None:
    made = make("def f(q, k, v): return attend(q, k, v)[0].mean(1, keepdim=True).expand(*q.shape[:-1], v.shape[-1])")
    assert "layout" not in made.about
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


def test_an_output_in_the_right_shape_whose_numbers_lie_in_another_order_is_wrong_in_its_numbers(make: Make) -> None:
    text = "out = attend(q, k, v)[0]; return out.transpose(1, 2).reshape(out.shape)"
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(f"def f(q, k, v): {text}"))


def test_a_mask_of_numbers_for_booleans_is_no_bias(make: Make) -> None:
    made = make("""
def f(q, k, v, mask=None):
    return attend(q, k, v, None if mask is None else (1.0 - mask.to(q.dtype)) * -1e4)[0]
""")
    assert "float-mask not claimed: numbers in its 'mask' mask keys, and are not added" in made.about
    assert Feature.BOOL_MASK in made.claims
    assert_conforms(made)


def test_a_bias_that_is_wrong_is_claimed(make: Make) -> None:
    made = make("def f(q, k, v, mask=None): return attend(q, k, v, None if mask is None else 2.0 * mask)[0]")
    assert Feature.FLOAT_MASK in made.claims
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


def test_an_added_mask_alone_leaves_nan_in_rows_without_keys(make: Make) -> None:
    made = make("""
def f(q, k, v, attention_mask=0.0):
    return (q @ k.mT * q.shape[-1] ** -0.5 + attention_mask).softmax(-1) @ v
""")
    assert Feature.BOOL_MASK not in made.claims
    assert made.claims.conventions.empty_row_float is EmptyRow.NAN


@pytest.mark.parametrize("named", [False, True], ids=["a flag alone", "masks of torch"])
def test_nan_without_keys_is_a_mistake_only_where_masks_promise_more(make: Make, named: bool) -> None:
    masked = ", attn_mask" if named else ""
    made = make(f"""
def f(q, k, v{masked and ", attn_mask=None"}, is_causal=False):
    output = attend(q, k, v{masked}, causal=is_causal)[0].nan_to_num()
    return output if k.shape[-2] else output * torch.nan
""")
    assert (Feature.EMPTY_SIZES in made.claims) is named
    assert ("it answers NaN without keys" in made.about) is not named


def test_nan_for_padding_alone_is_nan_without_keys(make: Make) -> None:
    made = make("""
def f(q, k, v, key_padding_mask=None, is_causal=False):
    return attend(q, k, v, None if key_padding_mask is None else ~key_padding_mask[:, None, None], is_causal)[0] * (
        1.0 if k.shape[-2] else torch.nan
    )
""")
    assert Feature.EMPTY_SIZES not in made.claims
    assert "it answers NaN without keys" in made.about


def test_a_class_that_is_called_is_a_function(make: Make) -> None:
    made = make("""
class f:
    def __init__(self, head_dim):
        self.scale = head_dim**-0.5
    def __call__(self, q, k, v, attn_mask=None):
        return attend(q, k, v, attn_mask, scale=self.scale)[0]
""")
    assert made.claims.premises == NO_PREMISES
    assert Feature.BOOL_MASK in made.claims
    assert_conforms(made)


def test_a_class_with_weights_of_its_own_is_refused(make: Make) -> None:
    text = """
class f:
    def __init__(self): self.w = torch.eye(4)
    def __call__(self, q, k, v): return attend(q @ self.w, k, v)[0]
"""
    assert refused(make, text).startswith("its constructor is f()")


def test_the_layout_of_one_that_is_always_causal_is_seen_by_its_last_query(make: Make) -> None:
    made = make(
        "def f(q, k, v): return attend(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)[0].transpose(1, 2)"
    )
    assert "(B, L, H, d)" in made.about
    assert made.claims.premises.causal


def test_an_array_that_every_call_needs_is_given_where_it_changes_nothing(make: Make) -> None:
    made = make(
        "def f(q, k, v, alibi_slopes): return attend(q, k, v, alibi_slopes[:, None, None] * ALIBI)[0]".replace(
            "ALIBI", "-(torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs().to(q.dtype)"
        )
    )
    assert Feature.ALIBI in made.claims
    assert_conforms(made)


TOGETHER = {
    "a list": (
        "inputs",
        "q, v, k = inputs",
        "inputs come as query, value, key; it takes query, key and value in a list",
    ),
    "one array": (
        "qkv",
        "q, k, v = qkv.unbind(2)",
        "(B, L, H, d); it takes query, key and value stacked",
    ),
}


@pytest.mark.parametrize(("inputs", "first", "note"), TOGETHER.values(), ids=TOGETHER)
def test_query_key_and_value_together_are_taken_as_the_answer_shows(
    make: Make, inputs: str, first: str, note: str
) -> None:
    axes = (1, 2) if "qkv" in inputs else (1, 1)
    transposed = f"attend(*(x.transpose{axes} for x in (q, k, v)))[0].transpose{axes}"
    made = make(f"def f({inputs}):\n    {first}\n    return {transposed}")
    assert note in made.about
    assert_conforms(made)


def test_what_takes_one_input_and_is_no_attention_is_refused(make: Make) -> None:
    assert "it takes (x) by position" in refused(make, "def f(x): return x * 2")


LOGGED = """
class Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        return 0 * g

def f(q, k, v):
    o, _, log = attend(q, k, v)
    return o, {log}
"""


@pytest.mark.parametrize(
    ("log", "statuses"), [("log", [Status.PASS]), ("Noted.apply(log)", [Status.FAIL]), ("log.detach()", [])]
)
def test_a_log_sum_exp_that_has_a_gradient_has_the_right_one(make: Make, log: str, statuses: list[Status]) -> None:
    found = run(make(LOGGED.format(log=log)), ("returned.log-sum-exp-gradient",), ("float32",))
    assert [each.status for each in found] == statuses
