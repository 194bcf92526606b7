"""The cases on which the reference is compared with the loops: listed ones, and those that Hypothesis draws."""

from dataclasses import replace
from itertools import product

from hypothesis import strategies as st

from attention_conformance.spec.cases import (
    Case,
    Embedding,
    MaskKind,
    MaskShape,
    ModuleForm,
    Padding,
    Pattern,
    Scores,
    Sharing,
    Sizes,
)
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Extension, Packing, PositionIds, QkNorm, RotaryTables
from attention_conformance.spec.gates_and_splits import OutputGates

CROSS = ModuleForm(Sharing.NONE, 13, 11, 17, 10, bias=True, output_projection=True, output_bias=True)
KEY_VALUE = ModuleForm(Sharing.KEY_VALUE, 13, 11, 11, 10, output_projection=True)
SELF = ModuleForm(Sharing.SELF, 12, 12, 12, 12, bias=True, output_projection=True, output_bias=True)
BARE = ModuleForm(Sharing.NONE, 13, 11, 17, 9)
SELECTED = ModuleForm(Sharing.NONE, 12, 12, 9, 9, output_projection=True, embedding=Embedding.SELECT)
SQUARE = Sizes(query_length=6, key_length=6)
TALL = Sizes(query_length=8, key_length=5)
OVERHANGING = Case(sizes=TALL, causal=True)

MASKED = [
    Case(mask=kind, mask_shape=shape)
    for kind, shape in product((MaskKind.BOOL, MaskKind.FLOAT, MaskKind.INFINITE), MaskShape)
]
PATTERNS = [Case(mask=MaskKind.BOOL, pattern=p) for p in Pattern]
PADDED = [Case(padding=p, causal=c) for p, c in product(Padding, (False, True))]
SPREAD = [Case(scores=s) for s in Scores] + [Case(score_std=30.0), Case(mask=MaskKind.FLOAT, mask_offset=-1e5)]
SCALED = [Case(scale=s) for s in (0.0, -0.7, 1.0, 3.5)]
SHAPED = [
    OVERHANGING,
    Case(sizes=SQUARE, causal=True),
    Case(sizes=Sizes(2, 2, 2, 2, 2, 2), mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE),
    Case(sizes=Sizes(1, 1, 1, 1, 1, 1), causal=True),
    Case(sizes=Sizes(2, 3, 1, 17, 5, 3), causal=True, padding=Padding.LEFT),
    Case(sizes=Sizes(0, 3, 2, 4, 5, 3)),
    Case(sizes=Sizes(2, 3, 0, 4, 5, 3)),
    Case(sizes=Sizes(2, 3, 2, 0, 5, 3)),
]
MODULES = [
    Case(module=CROSS),
    Case(module=BARE, mask=MaskKind.BOOL),
    Case(module=KEY_VALUE, padding=Padding.HOLES),
    Case(module=SELECTED, scores=Scores.RISING),
    Case(sizes=SQUARE, module=SELF, causal=True),
    Case(sizes=SQUARE, module=SELF, causal=True, padding=Padding.LEFT, mask=MaskKind.INFINITE),
    Case(module=CROSS, padding=Padding.EMPTY_SAMPLE, scale=0.4),
    Case(module=CROSS, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
]
CORE = [*MASKED, *PATTERNS, *PADDED, *SPREAD, *SCALED, *SHAPED, *MODULES]

SMALL = Sizes(batch=2, num_heads=2, query_length=3, key_length=4, d_k=3, d_v=2)
NARROW = ModuleForm(Sharing.NONE, 5, 3, 4, 3, bias=True, output_projection=True, output_bias=True)
NARROW_SELF = replace(NARROW, sharing=Sharing.SELF, query_dim=4, key_dim=4, value_dim=4)
NARROW_KEY_VALUE = replace(NARROW, sharing=Sharing.KEY_VALUE, value_dim=3)
SMALLER_SIZES = {Sizes(): SMALL, SQUARE: replace(SMALL, query_length=4), TALL: replace(SMALL, query_length=5)}
NARROWER_FORMS = {
    CROSS: NARROW,
    SELF: NARROW_SELF,
    KEY_VALUE: NARROW_KEY_VALUE,
    BARE: ModuleForm(Sharing.NONE, 5, 3, 4, 4),
    SELECTED: replace(SELECTED, query_dim=6, key_dim=6, value_dim=4, out_dim=4),
}


def smaller(case: Case) -> Case:
    """The case with few elements, as complex steps and fifty digits need it."""
    sizes = SMALLER_SIZES.get(case.sizes, case.sizes)
    return replace(case, sizes=sizes, module=case.module and NARROWER_FORMS.get(case.module, case.module))


CORE_GRADIENTS = [
    *(smaller(case) for case in (*MASKED, *PATTERNS, *PADDED, *SPREAD, *SCALED, *MODULES, OVERHANGING)),
    Case(sizes=SMALL, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW, mask_shape=MaskShape.SHARED),
    Case(sizes=SMALL, mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW),
    Case(sizes=SMALL, module=NARROW, mask=MaskKind.FLOAT, mask_shape=MaskShape.SAMPLE),
    Case(sizes=SMALL, module=NARROW_KEY_VALUE, padding=Padding.EMPTY_SAMPLE),
    smaller(Case(sizes=SQUARE, causal=True, padding=Padding.LEFT)),
    smaller(
        Case(sizes=SQUARE, module=ModuleForm(Sharing.SELF, 16, 16, 16, 4, embedding=Embedding.SELECT), causal=True)
    ),
]
CORE_DIGITS = [
    Case(sizes=SMALL),
    Case(sizes=SMALL, score_std=30.0),
    Case(sizes=SMALL, mask=MaskKind.INFINITE, causal=True),
    Case(sizes=SMALL, mask=MaskKind.FLOAT, mask_offset=-1e5),
    Case(sizes=SMALL, scores=Scores.FAR_ROWS, padding=Padding.LENGTHS),
    Case(sizes=SMALL, module=NARROW, padding=Padding.LEFT),
]

FEW = Sizes(batch=2, num_heads=2, query_length=4, key_length=5, d_k=4, d_v=2)
GROUPS = replace(FEW, num_heads=4, num_kv_heads=2, query_length=3)
FEW_SQUARE = replace(FEW, query_length=5)
FEW_KEYS = replace(FEW, query_length=6, key_length=4)
LONG = replace(FEW, batch=1, num_heads=1, query_length=9, key_length=9)
POSITIONED = Case(sizes=GROUPS).extended(window_left=3, window_right=2, rotary_base=50.0, query_start=1, alibi=True)
EVERYTHING = POSITIONED.extended(
    qk_norm=QkNorm.HEAD,
    relative_bias=2,
    softcap=2.0,
    sinks=True,
    zero_attn=True,
    head_gates=True,
    output_gates=OutputGates.CHANNEL,
)
PLACED = [
    Case(sizes=FEW, causal=True).extended(query_start=1),
    Case(sizes=FEW_KEYS, causal=True),
    Case(sizes=FEW, causal=True, padding=Padding.LENGTHS).extended(query_starts=True, alibi=True),
    Case(sizes=FEW).extended(window_left=2, window_right=1, query_starts=True, rotary_base=9.0),
    Case(sizes=FEW, causal=True, padding=Padding.LENGTHS).extended(query_lens=True, alibi=True, alibi_samples=True),
    Case(sizes=FEW).extended(window_left=1),
    Case(sizes=FEW).extended(window_left=0, window_right=0),
    Case(sizes=FEW).extended(window_left=2, window_right=1, query_start=2),
    Case(sizes=FEW_KEYS).extended(window_left=1, window_right=1),
    Case(sizes=FEW_SQUARE, causal=True).extended(window_left=2),
    Case(sizes=FEW_SQUARE, padding=Padding.LEFT).extended(window_left=2),
    Case(sizes=FEW).extended(packing=Packing.SEGMENTS),
    Case(sizes=LONG, causal=True).extended(packing=Packing.SEGMENTS),
    Case(sizes=LONG, causal=True).extended(packing=Packing.LENGTHS, window_left=1),
    Case(sizes=LONG, mask=MaskKind.INFINITE).extended(packing=Packing.LENGTHS),
    Case(sizes=FEW_KEYS, causal=True).extended(packing=Packing.LENGTHS, alibi=True),
    Case(sizes=FEW).extended(packing=Packing.EMPTY_SEGMENT, rotary_base=10.0, relative_bias=1),
    Case(sizes=FEW).extended(packing=Packing.EMPTY_DOCUMENT, window_right=0),
]
SCORED = [
    Case(sizes=FEW, score_std=6.0).extended(softcap=1.5),
    Case(sizes=FEW, score_std=30.0, mask=MaskKind.FLOAT).extended(softcap=20.0),
    Case(sizes=FEW).extended(rotary_base=10000.0),
    Case(sizes=FEW).extended(rotary_base=3.0, query_start=7),
    Case(sizes=replace(FEW, d_k=5)).extended(rotary_base=3.0, rotary_dim=4),
    Case(sizes=FEW, causal=True).extended(rotary_base=9.0, position_ids=PositionIds.ASCENDING, query_start=1),
    Case(sizes=FEW).extended(rotary_tables=RotaryTables.POSITIONS, query_start=1),
    Case(sizes=replace(FEW_SQUARE, d_k=5)).extended(rotary_tables=RotaryTables.REPEATED, rotary_dim=4),
    Case(sizes=FEW).extended(qk_norm=QkNorm.HEAD),
    Case(sizes=FEW, score_std=4.0).extended(qk_norm=QkNorm.WIDTH, norm_epsilon=0.3, rotary_base=9.0),
    Case(sizes=FEW).extended(alibi=True),
    Case(sizes=FEW, causal=True).extended(alibi=True, query_start=3),
    Case(sizes=FEW, mask=MaskKind.INFINITE, mask_shape=MaskShape.SAMPLE).extended(relative_bias=2),
    Case(sizes=FEW_SQUARE).extended(relative_bias=9),
    Case(sizes=FEW_SQUARE).extended(bucketed_bias=8, max_distance=5),
    Case(sizes=FEW).extended(bucketed_bias=5, max_distance=9, bidirectional=False, query_start=9),
]
EXTENDED = [
    Case(sizes=FEW).extended(sinks=True),
    Case(sizes=FEW, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW).extended(sinks=True),
    Case(sizes=FEW, mask=MaskKind.FLOAT).extended(zero_attn=True),
    Case(sizes=FEW, padding=Padding.EMPTY_SAMPLE).extended(zero_attn=True, sinks=True, softcap=2.0),
    Case(sizes=FEW).extended(head_gates=True),
    Case(sizes=FEW).extended(output_gates=OutputGates.HEAD),
]
GROUPED = [
    Case(sizes=GROUPS),
    Case(sizes=replace(GROUPS, num_kv_heads=1), causal=True).extended(rotary_base=9.0),
    Case(sizes=replace(GROUPS, num_heads=6, num_kv_heads=2)).extended(sinks=True, alibi=True),
]
LATENTS = [
    Case(sizes=FEW).extended(latent=5, decoupled=1),
    Case(sizes=FEW, causal=True, padding=Padding.LENGTHS).extended(latent=3, decoupled=2, softcap=2.0),
    Case(sizes=FEW).extended(latent=2),
]
FAMILY_MODULES = [
    Case(sizes=FEW, module=NARROW).extended(bias_kv=True),
    Case(sizes=FEW, module=NARROW_KEY_VALUE, mask=MaskKind.BOOL).extended(bias_kv=True, zero_attn=True),
    Case(sizes=FEW_SQUARE, module=NARROW_SELF, causal=True).extended(bias_kv=True, sinks=True, rotary_base=20.0),
    Case(sizes=GROUPS, module=NARROW).extended(head_gates=True, relative_bias=1),
    Case(sizes=GROUPS, module=NARROW_KEY_VALUE).extended(bias_kv=True, softcap=2.0),
    replace(EVERYTHING, module=NARROW).extended(bias_kv=True),
    Case(sizes=LONG, module=NARROW_SELF, causal=True).extended(packing=Packing.SEGMENTS, alibi=True),
]
DIGITS = [*CORE_DIGITS, *SCORED, *EXTENDED, EVERYTHING, *FAMILY_MODULES]
DROPPED = [
    case.extended(dropout=rate, dropout_seed=1)
    for rate in (0.3, 0.9)
    for case in (
        Case(sizes=FEW),
        Case(sizes=GROUPS, mask=MaskKind.BOOL).extended(head_gates=True, sinks=True),
        Case(sizes=FEW, module=NARROW).extended(bias_kv=True, zero_attn=True),
    )
]
FAMILY = [*PLACED, *SCORED, *EXTENDED, *GROUPED, EVERYTHING, *FAMILY_MODULES, *DROPPED]
EMPTIED = [
    Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
    Case(mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW, mask_shape=MaskShape.SHARED),
    Case(padding=Padding.EMPTY_SAMPLE, module=BARE),
    Case(padding=Padding.LEFT, causal=True, module=CROSS),
    OVERHANGING,
    Case(sizes=FEW).extended(window_left=0, window_right=0, query_start=9),
    Case(sizes=FEW_KEYS).extended(window_left=0, window_right=0),
    Case(sizes=FEW).extended(packing=Packing.EMPTY_SEGMENT),
    Case(sizes=LONG, causal=True).extended(packing=Packing.EMPTY_DOCUMENT),
]


DRAWN_CORE = st.builds(
    Case,
    sizes=st.builds(Sizes, *(st.integers(1, most) for most in (3, 3, 9, 9, 5, 5))),
    seed=st.integers(0, 2**32),
    score_std=st.floats(0.01, 50.0),
    scale=st.none() | st.floats(-3.0, 3.0),
    mask=...,
    mask_shape=...,
    padding=...,
    causal=...,
)
DRAWN_FAMILY = st.builds(
    Case,
    sizes=st.builds(
        lambda groups, shared, pairs, **rest: Sizes(
            num_heads=groups * shared, num_kv_heads=shared, d_k=2 * pairs, **rest
        ),
        groups=st.integers(1, 3),
        shared=st.integers(1, 2),
        pairs=st.integers(1, 3),
        batch=st.integers(1, 2),
        query_length=st.integers(1, 7),
        key_length=st.integers(1, 7),
        d_v=st.integers(1, 3),
    ),
    seed=st.integers(0, 2**32),
    score_std=st.floats(0.1, 20.0),
    mask=...,
    padding=st.sampled_from((Padding.NONE, Padding.NONE, Padding.LEFT, Padding.HOLES)),
    causal=...,
    extension=st.builds(
        Extension,
        window_left=st.none() | st.integers(0, 9),
        window_right=st.none() | st.integers(0, 9),
        softcap=st.none() | st.floats(0.1, 100.0),
        rotary_base=st.none() | st.floats(1.0, 1e6),
        rotary_dim=st.sampled_from((None, 2)),
        position_ids=...,
        query_start=st.none() | st.integers(0, 50),
        query_starts=st.booleans(),
        relative_bias=st.integers(0, 4),
        qk_norm=...,
        output_gates=...,
        norm_epsilon=st.none() | st.floats(0.0, 1.0),
        packing=...,
        dropout=st.sampled_from((0.0, 0.0, 0.5)),
        dropout_seed=st.integers(0, 1000),
        **dict.fromkeys(("alibi", "sinks", "zero_attn", "head_gates", "bias_kv"), st.booleans()),
    ),
)
DRAWN_CONVENTIONS = st.builds(
    Conventions,
    **dict.fromkeys(("causal_alignment", "group_order", "window_count", "padded_positions", "rotary_pairing"), ...),
    **dict.fromkeys(("norm_kind", "norm_order", "norm_gain"), ...),
)
