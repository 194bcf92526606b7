"""Windows of images: each image of a batch has the masks of its own windows, in the order that is documented."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

WINDOWS = """
class f(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        tokens = window_size[0] * window_size[1]
        self.bias = nn.Parameter(torch.zeros(num_heads, tokens, tokens))
    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5 + self.bias
        if mask is not None:
            s = s + mask.{repeated}[:, None]
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("repeated", "wrong"),
    [
        ("repeat(len(x) // len(mask), 1, 1)", False),
        ("repeat(len(x) // len(mask), 1, 1)[torch.arange(len(x)) // 2]", True),
    ],
)
def test_each_image_has_the_masks_of_its_windows(make: Make, repeated: str, wrong: bool) -> None:
    assert bool(failing(make(WINDOWS.format(repeated=repeated)), "modules.as-built")) is wrong


def test_windows_before_images_are_right_in_a_model_that_cuts_so_and_said_to_be_unknown(make: Make) -> None:
    text = WINDOWS.format(repeated="repeat_interleave(len(x) // len(mask), 0)")
    made = make(text)
    assert not failing(made, "modules.as-built")
    assert "first windows of all images first" in made.findings["mask"]


@pytest.mark.parametrize(
    "words", ["x (num_windows * B, N, E) as window_partition gives it", "all windows of one image"]
)
def test_windows_before_images_are_wrong_where_those_of_an_image_are_said_to_follow(make: Make, words: str) -> None:
    text = WINDOWS.format(repeated="repeat_interleave(len(x) // len(mask), 0)")
    documented = text.replace("class f(nn.Module):", f'class f(nn.Module):\n    """{words}"""')
    assert failing(make(documented), "modules.as-built")
