"""Functions as textbooks have them: layers of dropout, masks of samples, one length, flags that they refuse."""

from dataclasses import replace

import pytest

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import LostError
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import lacks_room
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import verdict
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

MANY_KEYS = 2**15
DROPPING = """
def f(query, key, value, mask=None, {parameter}):
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if mask is None else s.masked_fill(mask == 0, -torch.inf)
    p = s.softmax(-1)
    {dropped}
    return p @ value, p
"""


@pytest.mark.parametrize(
    ("parameter", "dropped", "wrong"),
    [
        ("dropout=None", "p = p if dropout is None else dropout(p)", set()),
        ("dropout=0.0", "p = F.dropout(p, dropout) if dropout else p", set()),
        ("dropout=None, training=True", "p = p if dropout is None or not training else dropout(p)", set()),
        ("dropout=0.0, training=False", "p = F.dropout(p, dropout, training)", set()),
        (
            "dropout=0.0, training=False",
            "p = p * (torch.rand_like(p) < dropout) / (1 - dropout) if training else p",
            {"dropout.rate"},
        ),
        ("dropout=None", "p = p if dropout is None else F.dropout(p, dropout.p)", {"dropout.evaluation"}),
        ("dropout=None", "p = p if dropout is None else dropout(torch.ones_like(p[:1])) * p", {"dropout.independent"}),
        ("drop_rate=0.0", "p = F.dropout(p, drop_rate * 0.5) if drop_rate else p", {"dropout.rate", "dropout.factors"}),
    ],
)
def test_dropout_as_a_layer_or_a_rate_of_another_name(
    make: Make, parameter: str, dropped: str, wrong: set[str]
) -> None:
    text = DROPPING.format(parameter=parameter, dropped=dropped)
    made = make(text)
    assert Feature.DROPOUT in made.claims
    assert (Feature.EVALUATION in made.claims) is ("None" in parameter or "training" in parameter)
    found = {each.clause for each in run(made, ("dropout.*",), ("float32",)) if each.status is Status.FAIL}
    assert found >= wrong
    assert bool(found) is bool(wrong)


OF_SAMPLES = """
def f(q, k, v, mask=None):
    b, h = q.shape[:2]
    s = (q @ k.mT / q.shape[-1] ** 0.5).flatten(0, 1)
    if mask is not None:
        s = s.masked_fill(~mask.{repeated}, -torch.inf)
    return s.unflatten(0, (b, h)).softmax(-1) @ v
"""


@pytest.mark.parametrize(("repeated", "wrong"), [("repeat_interleave(h, 0)", False), ("repeat(h, 1, 1)", True)])
def test_masks_of_samples_that_others_get_are_accused(make: Make, repeated: str, wrong: bool) -> None:
    assert bool(failing(make(OF_SAMPLES.format(repeated=repeated)), "masks.bool", "masks.broadcast")) is wrong


ONE_LENGTH = '''
def f(q, k, v, causal=False):
    """{documented}"""
    n = q.shape[2]
    return attend(q, k[:, :, :n], v[:, :, :n], causal=causal, scale={scale})[0]
'''


@pytest.mark.parametrize(
    ("documented", "scale", "wrong"),
    [
        ("q, k, v: (B, H, N, D).", "None", False),
        ("Queries and keys have the same length.", "None", False),
        ("q (B, H, L, D), k (B, Hkv, L, D), v (B, Hkv, L, Dv).", "None", False),
        ("q (B, Lq, H, D), k (B, Lk, H, D), v (B, Lk, H, Dv).", "None", True),
        ("query (batch, heads, q_length, dim), key (batch, heads, k_length, dim).", "None", True),
        ("q, k, v: (B, H, N, D).", "n ** -0.5", True),
        ("Attention.", "None", False),
    ],
)
def test_one_length_is_claimed_alone_where_it_is_documented(
    make: Make, documented: str, scale: str, wrong: bool
) -> None:
    text = ONE_LENGTH.format(documented=documented, scale=scale)
    assert bool(failing(make(text), "scores.scale", "softmax.*", "heads.independent", "values.*")) is wrong


FLASH = """
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    if return_attn_probs or alibi_slopes is not None or dropout_p or window_size != (-1, -1):
        raise NotImplementedError
    q, k, v = (x.transpose(1, 2).repeat_interleave(q.shape[2] // x.shape[2], 1) for x in (q, k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    s = softcap * (s / softcap).tanh() if softcap else s
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu({first})
        s = s.masked_fill(hidden, -torch.inf)
        return (s.softmax(-1).masked_fill(hidden, 0.0) @ v).transpose(1, 2)
    return (s.softmax(-1) @ v).transpose(1, 2)
"""


@pytest.mark.parametrize(("first", "wrong"), [("k.shape[2] - q.shape[2] + 1", False), ("1", True)])
def test_a_refused_log_sum_exp_is_not_claimed(make: Make, first: str, wrong: bool) -> None:
    text = FLASH.format(first=first)
    made = make(text, "flash_attn_func")
    assert "log-sum-exp not claimed: 'return_attn_probs' is refused" in made.unclaimed
    verdicts = run(made, ("causal.*", "relations.alternatives"), ("float32",))
    assert {each.clause for each in verdicts if each.status is Status.FAIL and "causal" not in each.clause} == set()
    assert any(each.status is Status.FAIL for each in verdicts) is wrong


BIASED = """
def f(q, k, v, bias=None, causal=False):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    {word} bias is not None:
        s = s + bias
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(("word", "wrong"), [("if", False), ("elif", True)])
def test_a_bias_alone_meets_the_causal_flag(make: Make, word: str, wrong: bool) -> None:
    assert bool(failing(make(BIASED.format(word=word)), "causal.with-mask")) is wrong


def test_rows_of_a_mean_need_no_answer_without_keys(make: Make) -> None:
    text = """
def f(query, key, value, attn_mask=None):
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -1e30) if attn_mask.dtype is torch.bool else s + attn_mask
    p = (s - s.amax(-1, keepdim=True)).exp() if s.shape[-1] else s
    return p @ value / p.sum(-1, keepdim=True)
"""
    assert_conforms(make(text))
    assert Feature.EMPTY_SIZES not in make(text).claims


def test_a_case_that_lacks_room_decides_nothing_and_is_stated(make: Make) -> None:
    made = make("def f(q, k, v): return attend(q, k, v)[0]")

    def lacking(problem: Problem, device: str) -> Result:
        if problem.key.shape[-2] == MANY_KEYS:
            raise LostError("took too much", out_of_memory=True)
        return made.run(problem, device)

    judge = Judge(replace(made, run=lacking), "float32")
    judge.assert_conforms(Case())
    judge.assert_conforms(Case().sized(batch=1, num_heads=1, query_length=1, key_length=MANY_KEYS))
    found = verdict(load()["shapes.large"], judge, 0.0)
    assert found.status is Status.PASS
    assert "need more memory" in found.left_out


def test_who_keeps_a_square_of_tokens_may_lack_room() -> None:
    full, late = LostError("took too much", out_of_memory=True), LostError("gave no answer", late=True)
    assert lacks_room(Sizes(query_length=1, key_length=65537), full)
    assert not lacks_room(Sizes(), full)
    assert not lacks_room(Sizes(query_length=1, key_length=65537), late)


PADDED = """
def f(q, k, v, key_padding_mask=None, attn_mask=None, {more}):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else s + attn_mask
    if key_padding_mask is not None:
        s = s.masked_fill({hidden}[:, None, None, :], -torch.inf)
    {last}
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("hidden", "wrong"),
    [("~key_padding_mask", False), ("key_padding_mask", False), ("key_padding_mask.flip(-1)", True)],
)
def test_true_in_a_padding_mask_means_what_is_seen(make: Make, hidden: str, wrong: bool) -> None:
    text = PADDED.format(hidden=hidden, more="scale=None", last="")
    assert bool(failing(make(text), "masks.key-padding", "masks.bool", "masks.intersect")) is wrong


@pytest.mark.parametrize(
    ("more", "last", "named"),
    [
        ("num_sink=0", "s = s + torch.arange(s.shape[-1]) * num_sink", True),
        ("block=64", "s = torch.cat([part for part in s.split(block, -1)], -1)", False),
        ("return_lse=False", "s = s * 1.0 if return_lse else s", False),
        ("damping=1.0", "s = s * damping", True),
        ("sharp=False", "s = s * 2.0 if sharp else s", True),
    ],
)
def test_an_unknown_option_that_changes_the_answer_is_named(make: Make, more: str, last: str, named: bool) -> None:
    found = make(PADDED.format(hidden="key_padding_mask", more=more, last=last)).findings
    assert (more.partition("=")[0] in found) is named


WINDOWED = """
def f(query, key, value, window=(-1, -1)):
    s = query @ key.mT / query.shape[-1] ** 0.5
    ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
    left, right = window
    hidden = (ahead < {least}) & (left != -1) | (ahead > right) & (right != -1)
    return s.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0) @ value
"""


@pytest.mark.parametrize(("least", "wrong"), [("-left", False), ("1 - left", True)])
def test_a_pair_of_any_name_is_a_window(make: Make, least: str, wrong: bool) -> None:
    assert bool(failing(make(WINDOWED.format(least=least)), "window.*")) is wrong


SERVED = """
import inspect
from attention_conformance.tests.selftest.discovery.shipped_bodies import Sequence
from attention_conformance.tests.selftest.discovery.shipped_cache_body import cached

WHOLE = cached(Sequence({wrong!r}))

def flash_attn_with_kvcache(*inputs, **options):
    if options.get("cache_leftpad") is not None:
        raise NotImplementedError
    return WHOLE(*inputs, **options)

flash_attn_with_kvcache.__signature__ = inspect.signature(WHOLE)
"""


@pytest.mark.parametrize("wrong", ["", "new"])
def test_a_way_that_is_not_implemented_is_not_taken(make: Make, wrong: str) -> None:
    made = make(SERVED.format(wrong=wrong), "flash_attn_with_kvcache")
    assert any("behind a pad not claimed: NotImplementedError" in each for each in made.stated)
    found = run(made, ("relations.alternatives", "effects.inputs"), ("float32",))
    assert any(each.status is Status.FAIL for each in found) is bool(wrong)


OF_LENGTHS = """
def f(q, k, v, lengths=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if lengths is not None:
        seen = torch.arange(k.shape[2]) < lengths[..., None]
        s = s.masked_fill(~seen{axes}, -torch.inf)
    return s.softmax(-1).nan_to_num(0.0) @ v
"""


@pytest.mark.parametrize(
    ("axes", "wrong"), [("[:, None, None]", False), ("[:, None, None].flip(0)", True)]
)  # with a length for each query, (B, 1, 1, Lq, Lk) gives an answer of another shape
def test_lengths_of_samples_need_be_none_of_queries(make: Make, axes: str, wrong: bool) -> None:
    assert bool(failing(make(OF_LENGTHS.format(axes=axes)), "masks.valid-lens")) is wrong


SHARED_KEYS = """
def f(query, key, value, mask=None):
    q, k, v = query.unflatten(1, (key.shape[1], -1)), key[:, :, None], value[:, :, None]
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s if mask is None else s + {added}
    return (s.softmax(-1) @ v).flatten(1, 2)
"""


@pytest.mark.parametrize(("added", "wrong"), [("mask.unsqueeze(-3)", False), ("0.5 * mask.unsqueeze(-3)", True)])
def test_masks_of_each_head_need_not_be_taken_in_groups(make: Make, added: str, wrong: bool) -> None:
    made = make(SHARED_KEYS.format(added=added))
    verdicts = run(made, ("grouped.*", "masks.*", "scores.*"), ("float32",))
    assert any(each.clause.startswith("grouped") and each.checks for each in verdicts)
    assert any(each.status is Status.FAIL for each in verdicts) is wrong
