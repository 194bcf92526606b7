"""Functions with mask_mod and score_mod, and steps of a decoder of query, key and value alone."""

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

FLEX = """
def flex_attention(query, key, value, {mods}, scale=None, enable_gqa=False):
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    b, h, i, j = torch.meshgrid(*map(torch.arange, (*query.shape[:3], key.shape[2])), indexing="ij")
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
{body}
    weights = torch.softmax(scores.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0), -1)
    return weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0) @ value
"""
SCORED = "    scores = scores if score_mod is None else score_mod(scores, b, h, i, {key})"
HIDDEN = "    scores = scores if mask_mod is None else scores.masked_fill(~mask_mod(b, {head}, i, j), -math.inf)"
"""Each with the position of the key, or with the head, as they are or not."""
DECODING = """
def decode(q, k, v, scale=None, split=4):
    \"\"\"One token: q (B, H, {one}D), k and v (B, H, S, D).\"\"\"
    q, (logs, outputs) = q.unsqueeze(2) if q.ndim == 3 else q[:, :, :1], ([], [])
    for start in range(0, k.shape[2], split):
        part = slice(start, start + split)
        scores = q @ k[:, :, part].mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        logs.append(torch.logsumexp(scores, -1, keepdim=True))
        outputs.append(torch.softmax(scores, -1) @ v[:, :, part])
    shares = torch.softmax(torch.stack(logs), 0)
    return (torch.stack(outputs) * shares).sum(0){answer}
"""
CLAUSES = ("causal.square", "masks.bool", "window.extent")


def test_both_mods_are_called_with_positions(make: Make) -> None:
    text = FLEX.format(
        mods="score_mod=None, mask_mod=None", body="\n".join((SCORED.format(key="j"), HIDDEN.format(head="h")))
    )
    right = make(text, "flex_attention")
    assert {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.ALIBI, Feature.SOFTCAP} <= right.claims.features
    assert not failing(right, *CLAUSES, "positions.alibi", "softcap.formula", "masks.float", "grouped.order")


def test_a_mod_with_another_position_fails(make: Make) -> None:
    body = "\n".join((SCORED.format(key="j % 4"), HIDDEN.format(head="h")))
    wrong = make(FLEX.format(mods="score_mod=None, mask_mod=None", body=body), "flex_attention")
    assert failing(wrong, "positions.alibi", "masks.bool") == {"positions.alibi"}


def test_a_mask_mod_alone_takes_no_numbers(make: Make) -> None:
    right = make(FLEX.format(mods="mask_mod=None", body=HIDDEN.format(head="h")), "flex_attention")
    assert not {Feature.FLOAT_MASK, Feature.SOFTCAP} & right.claims.features
    assert not failing(right, *CLAUSES)


def test_a_mask_mod_with_another_head_fails(make: Make) -> None:
    wrong = make(FLEX.format(mods="mask_mod=None", body=HIDDEN.format(head="h * 0")), "flex_attention")
    assert failing(wrong, "masks.bool", "causal.square") == {"masks.bool"}


def test_a_score_mod_alone_gets_numbers(make: Make) -> None:
    right = make(FLEX.format(mods="score_mod=None", body=SCORED.format(key="j")), "flex_attention")
    assert Feature.BOOL_MASK not in right.claims.features
    assert not failing(right, "masks.float", "softcap.formula")


def test_mods_of_another_form_are_left_unjudged(make: Make) -> None:
    body = "    scores = scores if score_mod is None else score_mod(scores)"
    made = make(FLEX.format(mods="score_mod=None", body=body), "flex_attention")
    assert not {Feature.FLOAT_MASK, Feature.SOFTCAP} & made.claims.features


def test_a_step_of_a_decoder_has_no_axis_of_queries(make: Make) -> None:
    right = make(DECODING.format(one="", answer=".squeeze(2)"), "decode")
    assert not failing(right, "scores.dot-product", "softmax.large-scores")


def test_a_wrong_step_without_an_axis_of_queries_fails(make: Make) -> None:
    wrong = make(DECODING.format(one="", answer=".squeeze(2) * 1.01"), "decode")
    assert failing(wrong, "scores.dot-product")


def test_a_step_that_reads_one_query_is_given_one(make: Make) -> None:
    right = make(DECODING.format(one="1, ", answer=""), "decode")
    assert not failing(right, "scores.dot-product", "heads.independent")


def test_a_step_that_merges_its_parts_alike_fails(make: Make) -> None:
    text = DECODING.format(one="1, ", answer="").replace("torch.softmax(torch.stack(logs), 0)", "1 / len(logs)")
    assert failing(make(text, "decode"), "scores.dot-product")
