"""Functions of packed documents that take most parameters of a published kernel, and need others."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

PACKED_WINDOWS = """
def f(q, k, v, cu_q, cu_k, window_size=(-1, -1), causal=False, softmax_scale=None):
    (left, right), ends = window_size, zip(cu_q.tolist(), cu_q[1:].tolist(), cu_k.tolist(), cu_k[1:].tolist())
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    output = []
    for first, last, start, stop in ends:
        own = [x.transpose(0, 1) for x in (q[first:last], k[start:stop], v[start:stop])]
        own[1:] = (x.repeat_interleave(len(own[0]) // len(x), 0) for x in own[1:])
        n, m = last - first, stop - start
        ahead = torch.arange(m) - torch.arange(n)[:, None] - {shift}
        right = 0 if causal else right
        hide = ((ahead > right) if right >= 0 else ahead > m + n) | ((ahead < -left) if left >= 0 else ahead > m + n)
        s = (own[0] @ own[1].mT * scale).masked_fill(hide, -torch.inf)
        p = torch.nan_to_num(s.softmax(-1)) if m else s
        output.append((p @ own[2]).transpose(0, 1))
    return torch.cat(output)
"""


@pytest.mark.parametrize(("shift", "wrong"), [("(m - n)", False), ("(m - n + 1)", True)])
def test_names_of_a_published_kernel_do_not_hide_what_else_is_needed(make: Make, shift: str, wrong: bool) -> None:
    made = make(PACKED_WINDOWS.format(shift=shift))
    assert "a serving kernel" in made.about
    assert bool(failing(made, "causal.square", "window.extent")) is wrong
