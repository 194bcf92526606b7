"""Functions that attend in chunks: refused where that is all that they see, and judged where chunks are an error."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing, refused

CHUNKS = """
def f(q, k, v, chunk=8):
    n, m = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    far = n // chunk - m // chunk
    return attend(q, k, v, {seen})[0]
"""
BEFORE = "(far >= 0) & (far < 2)"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (BEFORE, "its own chunk of 8 tokens and of 1 before it"),
        (f"{BEFORE} & (n >= m)", "and of 1 before it"),
        ("far == 0", "its own chunk of 8 tokens, and no others"),
    ],
)
def test_a_mask_of_chunks_is_not_taken_for_a_mistake(make: Make, seen: str, words: str) -> None:
    assert words in refused(make, CHUNKS.format(seen=seen))


def test_a_last_tile_that_is_left_out_is_a_mistake(make: Make) -> None:
    text = CHUNKS.format(seen="(m < k.shape[-2] // chunk * chunk) | (m < chunk)")
    assert failing(make(text), "scores.*", "softmax.*")
