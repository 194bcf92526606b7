"""Functions that have to be given several options at once, or tables of rotations: right ones and mistakes."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing, refused

LOCAL = """
def f(q, k, v, {parameters}):
    ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    seen = ahead.abs() <= window{shift}
    if {causal}:
        seen = seen & (ahead <= 0)
    return attend(q, k, v, seen, scale={scale})[0]
"""
ROTATED = """
def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * {cos} + torch.cat([-second, first], -1) * {sin}

def f(q, k, v, cos, sin{more}):
    return attend(rotated(q, cos, sin), rotated({key}, cos, sin), v{given})[0]
"""
BEST = """
def f(q, k, v, topk):
    s = q @ k.mT / math.sqrt({width})
    least = s.topk(topk, -1).values[..., -1:]
    return s.masked_fill(s {below} least, -torch.inf).softmax(-1) @ v
"""
COSINES = """
def f(q, k, v, logit_scale):
    s = F.normalize(q, dim=-1) @ F.normalize(k, dim={axis}).mT
    return (s * logit_scale.clamp(max=math.log(100.0)).exp()).softmax(-1) @ v
"""
BIASED = """
def f(q, k, v, bias, mask):
    s = q @ k.mT / math.sqrt(q.shape[-1]) {sign} bias
    return s.masked_fill(~mask, -1e9).softmax(-1) @ v
"""
PLACED = """
def f(q, k, v, q_positions, k_positions):
    seen = k_positions[..., None, :] <{equal} q_positions[..., :, None]
    return attend(q, k, v, seen)[0]
"""
MERGED = """
def f(q, k, v, num_heads, window):
    q, k, v = (split(x, num_heads) for x in (q, k, v))
    ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    return attend(q, k, v, ahead.abs() {below} window)[0].transpose(1, 2).flatten(2)
"""
SPLIT = """
def f(q, k, v, sinks, {name}=1):
    parts = []
    for n, (key, value) in enumerate(zip(k.chunk({name}, 2), v.chunk({name}, 2))):
        s = q @ key.mT / q.shape[-1] ** 0.5
        own = sinks if {once} else sinks * 0 - 1e30
        s = torch.cat([s, own[:, None, None].expand(*s.shape[:3], 1).to(s)], -1)
        parts.append((s.softmax(-1)[..., :-1] @ value, s.logsumexp(-1, keepdim=True)))
    outputs, sums = map(torch.stack, zip(*parts))
    return (outputs * sums.softmax(0)).sum(0)
"""
PLAIN = "q.shape[-1] ** -0.5"


@pytest.mark.parametrize(
    ("parameters", "causal", "scale"),
    [
        ("window, causal", "causal", PLAIN),
        ("causal, window, scale", "causal", "scale"),
        ("block_size, window", "block_size < 0", PLAIN),
    ],
)
@pytest.mark.parametrize("shift", ["", " - 2 * (ahead < 0)"])
def test_a_window_next_to_something_else(make: Make, parameters: str, causal: str, scale: str, shift: str) -> None:
    made = make(LOCAL.format(parameters=parameters, causal=causal, scale=scale, shift=shift))
    assert "a window of all tokens in 'window'" in made.about
    assert (Feature.WINDOW in made.claims) is not bool(shift)
    assert ("window" in made.findings) is bool(shift)
    if not shift:
        assert_conforms(made)


@pytest.mark.parametrize("more", ["", ", window"])
def test_tables_of_rotations_by_position(make: Make, more: str) -> None:
    given = ", (torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]).abs() <= window" if more else ""
    made = make(ROTATED.format(cos="cos", sin="sin", more=more, key="k", given=given))
    assert Feature.ROTARY_TABLES in made.claims
    assert_conforms(made)
    assert not failing(made, "rotary-tables.scores")


@pytest.mark.parametrize(("cos", "sin"), [("cos[None, None]", "sin[None, None]"), ("cos[:, None]", "sin[:, None]")])
def test_tables_of_other_axes(make: Make, cos: str, sin: str) -> None:
    made = make(ROTATED.format(cos=cos, sin=sin, more="", key="k", given=""))
    assert Feature.ROTARY_TABLES in made.claims
    assert_conforms(made)


def test_sines_that_are_wrong(make: Make) -> None:
    made = make(ROTATED.format(cos="cos", sin="(1 - 2 * (x.shape[1] > 3)) * sin", more="", key="k", given=""))
    assert Feature.ROTARY_TABLES in made.claims
    assert failing(made, "rotary-tables.scores", "shapes.combinations")


def test_sines_of_no_known_form_are_not_judged(make: Make) -> None:
    made = make(ROTATED.format(cos="cos", sin="sin.flip(-1)", more="", key="k", given=""))
    assert Feature.ROTARY_TABLES not in made.claims
    assert any("no known form" in note for note in made.unclaimed)


def test_a_value_in_the_place_of_a_key_next_to_tables(make: Make) -> None:
    assert failing(make(ROTATED.format(cos="cos", sin="sin", more="", key="v", given="")), "scores.dot-product")


@pytest.mark.parametrize(("width", "wrong"), [("q.shape[-1]", False), ("k.shape[-2]", True)])
def test_as_many_keys_as_there_are(make: Make, width: str, wrong: bool) -> None:
    made = make(BEST.format(width=width, below="<"))
    assert "the number of keys in 'topk'" in made.about
    assert "not judged" in made.findings["topk"]
    assert bool(failing(made, "scores.scale-default", "scores.dot-product")) is wrong


@pytest.mark.parametrize(("axis", "wrong"), [("-1", False), ("-2", True)])
def test_cosines_times_a_power(make: Make, axis: str, wrong: bool) -> None:
    made = make(COSINES.format(axis=axis))
    assert bool(failing(made, "scores.dot-product", dtype="float64")) is wrong
    assert wrong or made.claims.premises.scale == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("sign", "wrong"), [("+", False), ("-", True)])
def test_a_bias_and_a_mask(make: Make, sign: str, wrong: bool) -> None:
    made = make(BIASED.format(sign=sign))
    assert {Feature.BOOL_MASK, Feature.FLOAT_MASK} <= made.claims.features
    assert bool(failing(made, "masks.bool", "masks.float")) is wrong


@pytest.mark.parametrize("equal", ["=", ""])
def test_positions_of_queries_and_keys(make: Make, equal: str) -> None:
    made = make(PLACED.format(equal=equal))
    assert made.claims.premises.causal
    assert bool(failing(made, "scores.dot-product")) is not bool(equal)


@pytest.mark.parametrize("below", ["<=", "<"])
def test_a_window_of_merged_heads(make: Make, below: str) -> None:
    made = make(MERGED.format(below=below))
    assert Feature.WINDOW in made.claims
    assert_conforms(made)


def test_what_only_its_author_knows_is_refused(make: Make) -> None:
    text = "def f(q, k, v, mood, causal):\n    return attend(q, k, v * mood, None, causal)[0]\n"
    assert "it needs 'mood'" in refused(make, text)


@pytest.mark.parametrize("name", ["num_splits", "kv_splits"])
@pytest.mark.parametrize(("once", "wrong"), [("n == 0", False), ("True", True)])
def test_parts_of_the_keys_are_merged(make: Make, name: str, once: str, wrong: bool) -> None:
    made = make(SPLIT.format(name=name, once=once))
    assert f"with {name}=3" in made.alternatives
    assert bool(failing(made, "relations.alternatives")) is wrong


IN_SEGMENTS = '''
def f(q, k, v, q_segment_ids, kv_segment_ids, q_positions, kv_positions):
    """q_segment_ids, kv_segment_ids: (B, L) long. {words}
    q_positions, kv_positions: (B, L) long, positions within the segment: later keys are hidden.
    """
    seen = (q_segment_ids[:, :, None] == kv_segment_ids[:, None]) & (q_positions[:, :, None] >= kv_positions[:, None])
    seen = {seen}
    (batch, heads, length, width), keys = q.shape, k.shape[2]
    p = (q @ k.mT * width**-0.5).masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return p.nan_to_num() @ v
'''
SEEN_FROM_ONE = "seen & (kv_segment_ids != 0)[:, None]"


@pytest.mark.parametrize(
    ("words", "seen", "wrong"),
    [
        ("0 is padding and meets nothing.", SEEN_FROM_ONE, False),
        ("Equal ids meet.", "seen", False),
        ("Equal ids meet.", SEEN_FROM_ONE, True),
        ("One id for each token.\n\n    Segments meet within an id, and id 0 is padding.", SEEN_FROM_ONE, False),
        ("0 is padding.", "q_positions[:, :, None] >= kv_positions[:, None]", True),
    ],
)
def test_segments_and_the_positions_within_them_are_given(make: Make, words: str, seen: str, wrong: bool) -> None:
    made = make(IN_SEGMENTS.format(words=words, seen=seen))
    assert bool(failing(made, "scores.*", "causal.*", "packed.segments", dtype="float64")) is wrong
