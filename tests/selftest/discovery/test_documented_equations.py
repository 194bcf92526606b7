"""Which texts state which function of queries and keys: denials, options and remarks state nothing."""

from collections.abc import Callable

import pytest

from attention_conformance.implementations.discovery.documented_equations import (
    is_for_inference,
    states_alibi,
    states_own_unseen,
    states_scaled,
    states_torchs_parameters,
    states_unscaled,
    states_zero_key,
)
from attention_conformance.implementations.discovery.documented_rows import states_zeros_without_keys
from attention_conformance.implementations.discovery.documented_windows import states_own_counted


def documented(text: str, name: str = "attend") -> Callable[..., object]:
    def function(q: object, k: object, v: object, window: int = 0, quiet: bool = False) -> object:
        return q

    function.__doc__, function.__name__ = text, name
    return function


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("A token attends to at most ``window`` tokens, itself being one of them.", True),
        ("A window of itself and the previous ``window - 1`` tokens.", True),
        ("It attends to the previous window - 1 tokens plus itself.", True),
        ("The window - 1 tokens before it, in addition to itself.", True),
        ("With window=1 a query sees no key besides itself.", True),
        ("window: the number of keys, including itself", True),
        ("window: the number of earlier keys, not counting itself", False),
        ("The window never counts itself.", False),
        ("window: earlier keys, without counting itself", False),
        ("A window of tokens besides itself.", False),
        ("A window of tokens.", None),
        ("Tokens in all: n. A window slides.", None),
        ("window: number of keys a query sees, its own position counted", True),
        ("With ``window_size=1`` a token attends to itself only.", True),
        ("A window of 1 sees only its own key.", True),
        ("With window=0 a token attends to itself alone.", False),
        ("A token sees the window latest tokens up to and with itself.", True),
        ("The last ``window`` tokens, including the current token.", True),
        ("window: earlier tokens that are seen, itself not counted", False),
        ("window: token i sees tokens max(0, i - window + 1) .. i", True),
        ("window: keys [i - window + 1, i]", True),
        ("window: keys (i - window, i]", True),
        ("window: position t sees t - window .. t", False),
        ("Sliding window w: [i - w, i]", False),
        ("A window: i - window < j <= i.", True),
        ("A window: i - window <= j <= i.", False),
        ("A window: 0 <= i - j < window.", True),
        ("A window: 0 <= i - j <= window.", False),
        ("window: whether a token with its own position counted is meant is up to include_self", None),
        ("window: keys a query sees, if include_self is set, itself included", None),
        ("This window is not i - window + 1 .. i.", None),
        ("window: position t sees t - window .. t - 1", None),
        ("window: keys (i - window, i)", None),
        ("window: keys in (i - window, i] are hidden.", None),
        ("The cache of the window drops i - window .. i.", None),
        ("Unlike Mistral, whose window is the set of keys j with i - window < j <= i, this one sees one more.", None),
        ("The window of query block i has key blocks i - w .. i.", None),
        ("In a window query i sees keys i - w .. i, where w = window - 1.", None),
        ("window: earlier keys; with the current token included, window + 1 are visible.", None),
        ("Window: i - window .. i + window.", None),
        ("window: halves, i - window // 2 + 1 .. i", None),
        ("The window has tokens next to the current token.", None),
        ("Window: with size=1 a token attends to itself only.", None),
        ("Causal attention over the last `window` tokens (the current token counts).", True),
        ("Each query attends to the last 'window' tokens, including itself.", True),
        ("Each query sees at most window keys.", True),
        ("Each query sees at most window keys before its own.", None),
        ("Each query attends to at most `window` tokens back.", None),
        ("Each query sees at most window other keys.", None),
        ("Each query attends to at most window tokens on either side.", None),
        ('"window": number of visible tokens, including self.', True),
        ("Args:\n    window: int. Number of visible tokens, including the current one.", True),
        ("Parameters\n----------\nwindow : int\n    Number of visible tokens. The query position is included.", True),
        (":param window: the number of tokens. The current one counts.", True),
        ("It attends to itself and the window-1 before.", True),
        ("The last w tokens incl. the current one, a window.", True),
        ("The current position counts towards the window.", True),
        ("The previous window - 1 tokens and the current one.", True),
        ("Sees window tokens before the current one, and itself.", False),
        ("The previous window tokens and the current one.", False),
        ("Sees window tokens, excluding itself.", False),
        ("In the window the current token does not count.", False),
        ("The last window tokens.", None),
        ("The last window tokens and itself.", None),
        ("The window: including self.window tokens.", None),
        ("In the window tokens before the current token are included.", None),
        ("A window, including self-attention.", None),
    ],
)
def test_whether_a_window_counts_the_own_key(text: str, counted: bool | None) -> None:
    assert states_own_counted(documented(text)) is counted


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The weights are those of nn.MultiheadAttention.", True),
        ("It has the layout of ``in_proj_weight`` in ``nn.MultiheadAttention``.", True),
        ("Unlike the layout of ``in_proj_weight`` in ``nn.MultiheadAttention``, it is head by head.", False),
        ("This is not the layout of ``in_proj_weight`` in ``nn.MultiheadAttention``.", False),
        ("Its weights differ from those of nn.MultiheadAttention.", False),
    ],
)
def test_whether_parameters_are_those_of_torch(text: str, stated: bool) -> None:
    assert states_torchs_parameters(documented(text)) is stated


@pytest.mark.parametrize(
    ("text", "name", "stated"),
    [
        ("There is no 1/sqrt(d) in T5.", "attend", True),
        ("The scores are not scaled.", "attend", True),
        ("Attention.", "t5_attention", True),
        ("Attention.", "T5Attention", True),
        ("Attention.", "MyMT5SelfAttention", True),
        ("Attention.", "GPT5Attention", False),
        ("Attention.", "attention_variant5", False),
        ("Attention.", "gpt5_attention", False),
        ("Without scaling the dot products grow large.", "attend", False),
        ("quiet: for unscaled scores", "attend", False),
        ("Values are not scaled.", "attend", False),
    ],
)
def test_whether_scores_are_scaled(text: str, name: str, stated: bool) -> None:
    assert states_unscaled(documented(text, name)) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Scaled dot-product attention with a bias.", True),
        ("Compute 'Scaled Dot Product Attention' with relative positions.", True),
        ("It is no scaled dot-product attention.", False),
        ("Dot-product attention.", False),
    ],
)
def test_whether_it_is_scaled_dot_product_attention(text: str, stated: bool) -> None:
    assert states_scaled(documented(text)) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Sliding-window decoding from a ring buffer.", True),
        ("Only for inference.", True),
        ("For training and inference.", False),
        ("Mask generation.", False),
        ("Decoding; its gradients are those of the plain one.", False),
    ],
)
def test_whether_it_is_for_inference(text: str, stated: bool) -> None:
    assert is_for_inference(documented(text)) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Token t reads tokens 0 .. t-1, NOT itself.", True),
        ("A query does not see itself.", True),
        ("Strictly causal: position i sees keys j <= i.", False),
        ("window: it sees earlier keys, excluding itself", False),
        ("quiet: if False, a token does not attend to itself", False),
        ("What it reads is not itself a mask.", False),
    ],
)
def test_whether_a_query_sees_its_own_key(text: str, stated: bool) -> None:
    assert states_own_unseen(documented(text)) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ('With "softmax1" in place of softmax.', True),
        ("exp(s) / (1 + sum(exp(s)))", True),
        ("There is no softmax1 here.", False),
        ("Softmax rather than softmax_one.", False),
        ("quiet: use softmax1 instead of softmax", False),
    ],
)
def test_whether_a_key_of_zeros_takes_part(text: str, stated: bool) -> None:
    assert states_zero_key(documented(text)) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Slopes are those of ALiBi.", True),
        ("A linear bias similar to ALiBi, with slopes of its own rule.", False),
        ("See ALiBi for a related approach.", False),
        ("A generalisation of ALiBi.", False),
        ("ALiBi slopes of n = 2**ceil(log2(H)) heads.", False),
    ],
)
def test_whether_slopes_are_those_of_alibi(text: str, stated: bool) -> None:
    assert states_alibi(documented(text)) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("A query that no key is visible to gives a row of zeros.", True),
        ("Fully masked rows get zeros.", True),
        ("In PyTorch, fully masked rows get zeros. Here they get the mean of all values.", False),
        ("Fully masked rows get zeros. Here they are the mean of all values.", False),
        ("The fused kernel gives zeros to fully masked rows.", False),
        ("The caller has to make sure that fully masked rows are set to zeros.", False),
        ("TODO: give zeros to fully masked rows.", False),
        ("Only in eval mode, fully masked rows get zeros.", False),
    ],
)
def test_whether_rows_without_keys_get_zeros(text: str, stated: bool) -> None:
    assert states_zeros_without_keys(documented(text)) is stated
