"""The fused module: a drop-in for torch's, and by whatever route the same answer."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.implementations.builtin.inhouse.fused import FusedAttention
from attention_conformance.implementations.builtin.inhouse.kernels import MOST_KEYS, Kernel, chosen
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Poison, Sizes
from attention_conformance.spec.features import Packing
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.selftest.reference.test_family import assert_agrees

WIDTH, HEADS, BATCH, LENGTH = 12, 3, 2, 5
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without bias": {"bias": False},
    "other widths": {"kdim": 7, "vdim": 5},
    "extra key": {"add_bias_kv": True},
    "key of zeros": {"add_zero_attn": True, "batch_first": True},
    "everything": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 7, "dropout": 0.5, "batch_first": True},
}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


def masks() -> dict[str, dict[str, Any]]:
    """Masks in all forms that torch takes; each leaves every query a key."""
    hidden = torch.rand(BATCH * HEADS, LENGTH, LENGTH).gt(0.6) & ~torch.eye(LENGTH, dtype=torch.bool)
    padding = torch.arange(LENGTH).expand(BATCH, LENGTH) > 3
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    hidden[..., 0] = False
    return {
        "none": {},
        "boolean": {"attn_mask": hidden[0]},
        "of each head": {"attn_mask": hidden},
        "added": {"attn_mask": torch.randn(BATCH * HEADS, LENGTH, LENGTH)},
        "padding": {"key_padding_mask": padding},
        "added padding": {"key_padding_mask": torch.zeros(BATCH, LENGTH).masked_fill(padding, -torch.inf)},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
        "causal": {"attn_mask": later, "is_causal": True},
    }


def pair(**options: Any) -> tuple[nn.MultiheadAttention, FusedAttention]:
    """Torch's module and ours, with the same parameters, in evaluation mode."""
    theirs, ours = nn.MultiheadAttention(WIDTH, HEADS, **options), FusedAttention(WIDTH, HEADS, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    return theirs.eval(), ours.eval()


def inputs(module: nn.MultiheadAttention) -> list[Tensor]:
    kdim, vdim = module.kdim or WIDTH, module.vdim or WIDTH
    shape = (BATCH, LENGTH) if module.batch_first else (LENGTH, BATCH)
    return [torch.randn(*shape, width) for width in (WIDTH, kdim, vdim)]


class TestDropIn:
    @pytest.mark.parametrize("returned", [{"need_weights": False}, {}, {"average_attn_weights": False}], ids=str)
    @pytest.mark.parametrize("mask", masks())
    @pytest.mark.parametrize("kind", KINDS)
    def test_answers_as_torch_does(self, kind: str, mask: str, returned: dict[str, bool]) -> None:
        theirs, ours = pair(**KINDS[kind])
        options = {**masks()[mask], **returned}
        # Where torch heeds its hint, and drops the mask for it, most queries lose sight of extra keys.
        unhinted = {name: option for name, option in options.items() if name != "is_causal"}
        x = inputs(theirs)
        for own, expected in zip(ours(*x, **options), theirs(*x, **unhinted), strict=True):
            torch.testing.assert_close(own, expected)

    def test_the_third_positional_argument_is_the_padding(self) -> None:
        theirs, ours = pair()
        x, padding = inputs(theirs), torch.arange(LENGTH).expand(BATCH, LENGTH) > 2
        torch.testing.assert_close(ours(*x, padding, False)[0], theirs(*x, padding, False)[0])

    @pytest.mark.parametrize("kind", ["plain", "extra key"])
    def test_without_a_batch(self, kind: str) -> None:
        theirs, ours = pair(**KINDS[kind])
        x, mask = torch.randn(LENGTH, WIDTH), torch.randn(HEADS, LENGTH, LENGTH)
        padding = torch.where(torch.arange(LENGTH) == 2, -torch.inf, 0.0)
        options = {"attn_mask": mask, "key_padding_mask": padding}
        for own, expected in zip(ours(x, x, x, **options), theirs(x, x, x, **options), strict=True):
            torch.testing.assert_close(own, expected)

    @pytest.mark.parametrize("kind", KINDS)
    def test_state_goes_both_ways(self, kind: str) -> None:
        theirs, ours = pair(**KINDS[kind])
        held, known = ({n: x.shape for n, x in module.state_dict().items()} for module in (ours, theirs))
        assert held == known
        nn.MultiheadAttention(WIDTH, HEADS, **KINDS[kind]).load_state_dict(ours.state_dict())

    def test_drops_in_training_only(self) -> None:
        module, x = FusedAttention(WIDTH, HEADS, dropout=1.0), torch.randn(LENGTH, BATCH, WIDTH)
        for need_weights in (False, True):
            assert not module.train()(x, need_weights=need_weights)[0].any()
            assert module.eval()(x, need_weights=need_weights)[0].all()


SQUARE = Case(causal=True).sized(query_length=7, key_length=7)
GROUPS = Case(sizes=Sizes(num_heads=6, num_kv_heads=2))
EMPTIED = Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
OF_EACH_HEAD = Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.HEAD, padding=Padding.LEFT)
ENTRIES = {each.name: each for each in INHOUSE}
CASES = {
    "merely causal": SQUARE,
    "causal, fewer keys": Case(causal=True),
    "causal, more keys": Case(causal=True).sized(key_length=3),
    "causal, negative scale": Case(causal=True, scale=-0.5).sized(query_length=7),
    "causal window": SQUARE.extended(window_left=2, query_start=0),
    "causal from a position on": Case(causal=True).extended(query_start=2),
    "groups": GROUPS.extended(rotary_base=50.0),
    "groups, masks and a key of zeros": replace(EMPTIED, sizes=GROUPS.sizes).extended(zero_attn=True),
    "extra keys and softcap": GROUPS.extended(bias_kv=True, zero_attn=True, softcap=2.0),
    "extra key and padding": Case(padding=Padding.EMPTY_SAMPLE).extended(bias_kv=True, alibi=True),
    "segments": Case().extended(packing=Packing.EMPTY_SEGMENT, relative_bias=1),
    "sinks and gates": GROUPS.extended(sinks=True, head_gates=True, window_left=1, window_right=2),
    "nan in padding of groups": replace(GROUPS, padding=Padding.RIGHT, poison=Poison.NAN),
    "a mask of each head, one of padding": OF_EACH_HEAD.extended(relative_bias=2),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kernel", Kernel)
def test_every_kernel_agrees(kernel: Kernel, name: str, dtype: str) -> None:
    """What is chosen by size is never chosen for small cases: here each kernel answers them all."""
    fused = ENTRIES["inhouse.fused"]
    assert_agrees(replace(fused, run=fused.alternatives[f"by the kernel {kernel}"]), dtype, CASES[name])


class TestKernels:
    @pytest.mark.parametrize(
        ("dtype", "keys", "recorded", "expected"),
        [
            (torch.bfloat16, MOST_KEYS, True, Kernel.COMPOSED),
            (torch.bfloat16, MOST_KEYS + 1, True, Kernel.SDPA),
            (torch.bfloat16, 4, False, Kernel.SDPA),
            (torch.float32, 4, True, Kernel.SDPA),
            (torch.float16, 4, True, Kernel.SDPA),
        ],
    )
    def test_follow_from_shape_and_dtype(self, dtype: torch.dtype, keys: int, recorded: bool, expected: Kernel) -> None:
        query = torch.zeros(1, 1, 3, 8, dtype=dtype, requires_grad=recorded)
        assert chosen(query, torch.zeros(1, 1, keys, 8, dtype=dtype)) is expected

    def test_are_named(self) -> None:
        assert FusedAttention(12, 3, kernel="composed").kernel is Kernel.COMPOSED
        with pytest.raises(ValueError, match="'fastest' is not a valid Kernel"):
            FusedAttention(12, 3, kernel="fastest")


class TestConstruction:
    def test_one_weight_where_the_inputs_are_equally_wide(self) -> None:
        names = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}
        assert set(dict(FusedAttention(12, 3, kdim=12).named_parameters())) == names

    def test_a_weight_for_each_input_otherwise(self) -> None:
        shapes = {name: tuple(p.shape) for name, p in FusedAttention(12, 3, vdim=5, bias=False).named_parameters()}
        weights = {"q_proj_weight": (12, 12), "k_proj_weight": (12, 12), "v_proj_weight": (12, 5)}
        assert shapes == {**weights, "out_proj.weight": (12, 12)}

    def test_groups_have_narrower_projections(self) -> None:
        module = FusedAttention(12, 6, num_kv_heads=2, add_bias_kv=True)
        assert module.in_proj_weight.shape == (12 + 4 + 4, 12)
        assert module.bias_k is not None
        assert module.bias_k.shape == (1, 1, 4)

    def test_extra_parameters_start_without_effect(self) -> None:
        plain, x = FusedAttention(12, 3), torch.randn(5, 2, 12)
        rich = FusedAttention(12, 3, relative_bias=2, head_gates=True)
        rich.load_state_dict(plain.state_dict(), strict=False)
        torch.testing.assert_close(rich(x)[0], plain(x)[0])

    def test_packed_and_separate_weights_agree(self) -> None:
        module, x = FusedAttention(12, 3), torch.randn(2, 5, 12)
        torch.testing.assert_close(module(x)[0], module(x, x.clone(), x.clone())[0])

    def test_self_attention_is_the_default(self) -> None:
        module, x, y = FusedAttention(12, 3, batch_first=True), torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        assert torch.equal(module(x)[0], module(x, x, x)[0])
        assert torch.equal(module(x, y)[0], module(x, y, y)[0])

    @pytest.mark.parametrize(
        ("embed_dim", "num_heads", "options", "named"),
        [
            (12, 0, {}, "num_heads=0"),
            (12, 5, {}, "embed_dim=12, num_heads=5"),
            (0, 1, {}, "embed_dim=0"),
            (12, 6, {"vdim": 0}, "vdim=0"),
            (12, 6, {"num_kv_heads": 4}, "num_kv_heads=4"),
        ],
    )
    def test_sizes_are_checked(self, embed_dim: int, num_heads: int, options: dict[str, Any], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            FusedAttention(embed_dim, num_heads, **options)

    def test_inputs_are_checked(self) -> None:
        module, x = FusedAttention(12, 3, batch_first=True), torch.randn(2, 5, 12)
        with pytest.raises(ValueError, match=r"key and value in length: got \(2, 5, 12\), \(2, 5, 12\), \(2, 4, 12\)"):
            module(x, x, x[:, :4])
        with pytest.raises(ValueError, match=r"key_padding_mask \(3, 5\) does not broadcast to \(2, 5\)"):
            module(x, key_padding_mask=torch.ones(3, 5, dtype=torch.bool))
