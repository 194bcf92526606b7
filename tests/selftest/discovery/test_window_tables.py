"""Functions with a table of biases for the offsets in a window, as those of Swin have it."""

import pytest

from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

SWIN = """
def window_attention(q, k, v, {parameters}):
    {window}
    y, x = torch.arange(h * w) // w, torch.arange(h * w) % w
    rows = (y[:, None] - y + {down} - 1) * (2 * {width} - 1) + x[:, None] - x + w - 1
    s = q @ k.mT / q.shape[-1] ** 0.5 + {bias}
    return {answer}
"""
USUAL = {
    "parameters": "bias_table, window_size",
    "window": "h, w = window_size",
    "bias": "bias_table[rows].permute(2, 0, 1)",
    "answer": "s.softmax(-1) @ v",
}
APART = {"parameters": "rpb, win_h, win_w", "window": "h, w = win_h, win_w", "bias": "rpb[:, rows]"}
OF_SIDES = {
    "parameters": "window_size, rel_pos_bias=None",
    "bias": "rel_pos_bias.reshape(len(rel_pos_bias), -1)[:, rows]",
    "answer": "(s.softmax(-1) @ v).transpose(1, 2).flatten(2)",
}


@pytest.mark.parametrize("form", [{}, APART, OF_SIDES])
@pytest.mark.parametrize(("down", "width", "wrong"), [("h", "w", False), ("h", "h", True), ("w", "w", True)])
def test_tables_of_windows_that_are_not_square(
    make: Make, form: dict[str, str], down: str, width: str, wrong: bool
) -> None:
    made = make(SWIN.format(**{**USUAL, **form}, down=down, width=width), "window_attention")
    assert Feature.FLOAT_MASK in made.claims
    assert "(2 * W" in made.about
    assert bool(failing(made, "masks.float", dtype="float64")) is wrong


SQUARE = {"parameters": "relative_position_bias_table, window_size: int", "window": "h = w = window_size"}


@pytest.mark.parametrize(("bias", "wrong"), [("[rows]", False), ("[rows.mT]", True)])
def test_one_side_is_that_of_a_square(make: Make, bias: str, wrong: bool) -> None:
    form = {**USUAL, **SQUARE, "bias": f"relative_position_bias_table{bias}.permute(2, 0, 1)", "down": "h"}
    text = SWIN.format(**form, width="w").replace("def window_attention", "def swin")
    made = make(text, "swin")
    assert "in square windows" in made.about
    assert bool(failing(made, "masks.float", dtype="float64")) is wrong


INDEXED = """
def f(q, k, v, relative_position_bias_table, relative_position_index, mask=None):
    '''q, k, v: (num_windows * B, N, heads, d); mask: (num_windows, N, N) with 0 and -inf.'''
    n = q.shape[1]
    s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    s = s + relative_position_bias_table[relative_position_index.view(-1)].view(n, n, -1).permute(2, 0, 1){scaled}
    if mask is not None:
        s = (s.unflatten(0, (-1, len(mask))) + mask[:, None]{times}).flatten(0, 1)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)
"""


@pytest.mark.parametrize(
    ("scaled", "times", "wrong"),
    [("", "", False), (" * 0.5", "", True), ("", ".transpose(2, 3)", True)],
)
def test_an_index_of_rows_next_to_a_mask_of_windows(make: Make, scaled: str, times: str, wrong: bool) -> None:
    made = make(INDEXED.format(scaled=scaled, times=times))
    assert times or made.claims.conventions.bool_mask is Polarity.MASKED_OUT
    assert bool(failing(made, "masks.bool", "masks.float", "masks.padding*", dtype="float64")) is wrong


LINE = """
def f(queries, keys, values, bias_table, window_size: int):
    at = np.arange(queries.shape[1])
    rows = {rows} + len(at) - 1
    s = np.einsum("bihd,bjhd->bhij", queries, keys) / np.sqrt(queries.shape[-1])
    s = s + bias_table[rows].transpose(2, 0, 1) * {times}
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", e / e.sum(-1, keepdims=True), values)
"""


@pytest.mark.parametrize(
    ("rows", "times", "wrong"),
    [("at[:, None] - at", 1, False), ("at - at[:, None]", 1, False), ("at - at[:, None]", 2, True)],
)
def test_a_window_of_one_row_has_either_order(make: Make, rows: str, times: int, wrong: bool) -> None:
    made = make(LINE.format(rows=rows, times=times))
    assert "windows of one row" in made.about
    assert bool(failing(made, "masks.float", dtype="float64")) is wrong


def test_another_table_is_none_of_a_window(make: Make) -> None:
    made = make("def f(q, k, v, rel_table=None, window_size=7):\n    return attend(q, k, v)[0]")
    assert Feature.FLOAT_MASK not in made.claims


def test_a_table_that_is_not_added_as_it_is_is_none_of_biases(make: Make) -> None:
    bounded = {**USUAL, "bias": "16 * bias_table[rows].permute(2, 0, 1).sigmoid()", "down": "h", "width": "w"}
    made = make(SWIN.format(**bounded), "window_attention")
    assert Feature.FLOAT_MASK not in made.claims
    assert not failing(made, "scores.dot-product", "masks.*")
