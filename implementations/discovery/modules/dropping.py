"""Rates of dropout that a module was built with, set to another one: in evaluation mode that changes nothing."""

from torch import nn

RATE = 0.5
"""The other rate: in training it would change almost any answer."""


def with_dropout(module: nn.Module) -> bool:
    """Sets the rates of its layers of dropout, and the numbers that are rates by their names, where these are 0.

    Returns:
        Whether there are any.
    """
    found = False
    for each in module.modules():
        own = ["p"] if isinstance(each, nn.Dropout) else [name for name in vars(each) if "drop" in name.lower()]
        for name in own:
            if (type(rate := getattr(each, name)) is float or name == "p") and rate == 0:
                setattr(each, name, RATE)
                found = True
    return found
