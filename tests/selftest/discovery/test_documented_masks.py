"""Documentation of masks as it is published: what leaves no doubt is read, in both senses, and nothing else is."""

import pytest

from attention_conformance.implementations.discovery.documented import said_of
from attention_conformance.implementations.discovery.documented_masks import unmistakable_polarity
from attention_conformance.spec.conventions import Polarity
from attention_conformance.tests.selftest.discovery.making import Make, failing

SHOWS = (
    "mask: True if query i attends to key j",
    "mask: (B, T), True for real tokens; padded positions are 0 in the output",
    "mask: shape [*, N_res]. 1.0 for real residues and 0.0 for padded ones",
    "mask: attention weights are masked out if their value is `False`, True = keep",
    "mask: (b, m) boolean, True for the context tokens that exist, False for the padded ones",
    "mask: Mask to avoid attention on padding tokens. Mask values selected in `[0, 1]`:\n\n"
    "    - 1 for tokens that are **not masked**,\n    - 0 for tokens that are **masked**.",
    "mask: Mask values selected in [0, 1]: 1 for tokens that are NOT MASKED, 0 for MASKED tokens.",
    "mask (Optional[Tensor]): A value of True in row ``i`` and column ``j`` means token ``i`` attends to token ``j``."
    " A value of False means token ``i`` does not attend to token ``j``.",
    "mask: a boolean mask of shape `(B, T, S)`, that prevents attention to certain positions. 1 indicates attention and"
    " 0 indicates no attention.",
    "mask: A boolean mask where a value of True indicates that the element should take part in attention.",
    "mask: (batch, length), True = keep",
    "mask: True = may attend",
    "mask: boolean, True where attention is allowed",
    "mask: 1.0 for positions we want to attend to and 0.0 for masked positions",
    "mask: 1 for real tokens, 0 for padding",
    "mask: boolean of shape (b, n). True: attend, False: ignore",
    "mask: bool, `True` means the key takes part in attention",
    "mask: BoolTensor (B, S), False marks padding",
    "mask: tokens to keep are True",
    "mask: (B, Lk), 1 - keep, 0 - ignore",
    "mask (jnp.ndarray): True values are attended to, False values are ignored.",
)
HIDES = (
    "mask: 0 = attend, 1 = don't",
    "mask: True = do not attend",
    "mask: (B, S), True marks keys to hide. The others are untouched.",
    "mask: shape (batch, src_len), where padding elements are indicated by 1s.",
    "mask (ByteTensor): binary ByteTensor of shape (batch, src_len) where padding elements are indicated by ``1``.",
    "mask: mask[tgt_i, src_j] = 1 means that we exclude (mask out) src_j, = 0 means it is included in attention",
    "mask: If a BoolTensor is provided, the positions with the value of ``True`` will be ignored while the position"
    " with the value of ``False`` will be unchanged.",
    "mask: If specified, a mask of shape (N, S). A ``True`` value indicates that the corresponding ``key`` value will"
    " be ignored for the purpose of attention.",
    "mask: positions with ``True`` are not allowed to attend while ``False`` values will be unchanged.",
    "mask: `True` means the corresponding position is masked out and a `False` means that position is allowed to"
    " participate in attention.",
    "mask: (B, HW) bool, True on padded pixels, False on real ones",
    "mask: True = masked out",
    "mask: 1 for padding, 0 for tokens",
    "mask: True where keys are padding",
    "mask: bool tensor, True indicates padded tokens",
    "mask: boolean, True to mask out a key",
)
DOUBTFUL = (
    "mask: attention mask of size (batch, 1, tgt_len, src_len), padding elements are indicated by very large negative"
    " values.",
    "mask: binary mask 1/0 indicating which keys have zero / non-zero attention ``(batch, query_len, key_len)``",
    "mask: Mask tensor (#batch, 1, time2) or (#batch, time1, time2).",
    "mask: mask tensor (#batch, 1, time2). 1.When applying cross attention between decoder and encoder, the batch"
    " padding mask for input is in (#batch, 1, T) shape.",
    "mask: added to the scores, 0 for positions to keep and -inf for masked positions",
    "mask: additive, 0.0 = keep, large negative = masked",
    "mask: scores will effectively be set to -infinity for positions that are 0, and unchanged for positions"
    " that are 1.",
    "mask: (B, 1, keys), which padded tokens need",
    "mask: keys of axis 1 are padded to the longest",
    "mask: optional padding mask",
    "mask: True is the opposite of torch's: it keeps a key",
    "mask: as in scaled_dot_product_attention, True = keep",
    "mask: bool mask, or use_mask=True for padded inputs",
    "mask: the inverted mask, True = keep, is computed inside",
    "mask: True = valid",
    "mask: True = mask, False = no mask",
    "mask: padded with 0 to the length of the keys",
    "mask: binary, 1 = keep; True for the ignored",
    "mask: causal mask, upper triangle 1",
    "mask: True where padding is absent",
    "mask: tokens that need not be padded are 1",
    "mask: non padded tokens are 1",
    "mask: padded at the end, token 0 is ignored",
    "mask: True means attention to this position is prevented",
    "mask: set True to keep padding hidden",
    "mask: none. key_padding_mask: True = padding",
)


def documented(text: str) -> object:
    def forward(x: object, mask: object = None) -> None: ...

    forward.__doc__ = f"Attention.\n\n{text}"
    return forward


@pytest.mark.parametrize("text", SHOWS)
def test_true_shows_a_key_by_published_words(text: str) -> None:
    assert unmistakable_polarity(documented(text), "mask") is Polarity.MAY_ATTEND


@pytest.mark.parametrize("text", HIDES)
def test_true_hides_a_key_by_published_words(text: str) -> None:
    assert unmistakable_polarity(documented(text), "mask") is Polarity.MASKED_OUT


@pytest.mark.parametrize("text", DOUBTFUL)
def test_what_may_be_read_otherwise_states_nothing(text: str) -> None:
    assert unmistakable_polarity(documented(text), "mask") is None


CROSS = '''
class f(nn.Module):
    """Attention to a context.

    mask: {said}
    """
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
    def forward(self, x, context=None, mask=None):
        k, v = (split(each, self.h) for each in self.kv(x if context is None else context).chunk(2, -1))
        s = split(self.q(x), self.h) @ k.mT / k.shape[-1] ** 0.5
        if mask is not None:
            s = s.masked_fill({hidden}, -1e30)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
'''
TRUE_SHOWS, TRUE_HIDES = "~mask[:, None, None]", "mask[:, None, None]"
STATED = "boolean (b, m), True for the tokens that exist, False for the padded ones"


@pytest.mark.parametrize(
    ("said", "hidden", "wrong"),
    [
        (STATED, TRUE_HIDES, True),
        ("(b, m), True = masked out", TRUE_SHOWS, True),
        (STATED, TRUE_SHOWS, False),
        ("(b, m), True = masked out", TRUE_HIDES, False),
        ("(b, m) boolean mask of padding", TRUE_HIDES, False),
        ("(b, m), True = valid", TRUE_HIDES, False),
        ("(b, m) bool, True for the valid tokens of the context", TRUE_HIDES, True),
        ("(b, m) bool, True for the valid tokens of the context", TRUE_SHOWS, False),
    ],
)
def test_a_mask_that_is_the_other_way_round_fails(make: Make, said: str, hidden: str, wrong: bool) -> None:
    made = make(CROSS.format(said=said, hidden=hidden))
    assert any("by its documentation True in 'mask'" in each for each in made.stated) is wrong
    assert bool(failing(made, "masks.key-padding")) is wrong


def commented(x: object, mask: object = None, other: object = None) -> object:
    if mask is not None:  # additive, (L, L)
        return mask
    if other is not None:
        return other  # (B, L)
    return x


def test_a_comment_behind_the_condition_that_a_mask_is_given_is_about_it() -> None:
    assert said_of(commented, "mask") == ["mask: additive, (L, L)"]
    assert said_of(commented, "other") == []
