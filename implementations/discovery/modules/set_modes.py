"""Methods by which a plain class is put into evaluation mode, which some need before the first call."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import required

SETTERS = ("set_mode", "set_training", "set_train", "mode", "set_training_mode", "set_phase")
"""Names of methods that take a mode."""
ALONE = ("eval", "evaluate_mode", "eval_mode", "set_eval", "test_mode", "inference_mode", "set_inference")
"""Those that take nothing."""
EVALUATION = ("eval", "test", "evaluation", "inference", "infer", "val", "predict")
"""Texts for the mode, the likelier first."""
OF_TRAINING = ("train", "training", "is_train", "is_training", "flag")
"""Names of what is False in evaluation."""


def put_in_evaluation(made: Any) -> None:
    """Calls the first method of the object's class that its name states to be for that; does nothing without one."""
    for name in (*ALONE, *SETTERS):
        method = getattr(type(made), name, None)
        if inspect.isfunction(method) and (argument := _given(method)) is not None:
            safe_call(partial(getattr(made, name), *argument))
            return


def _given(method: Callable[..., Any]) -> tuple[object, ...] | None:
    """What it is given, of what it needs; None where it needs more than a mode."""
    needed = [p for p in [*inspect.signature(method).parameters.values()][1:] if required(p)]
    if not needed:
        return () if method.__name__ in ALONE else None
    if len(needed) > 1 or method.__name__ not in SETTERS:
        return None
    states = needed[0].name.lower() in OF_TRAINING or "train" in method.__name__
    return (False,) if states or needed[0].annotation in (bool, "bool") else (_text(method),)


def _text(method: Callable[..., Any]) -> str:
    """The text for evaluation that stands between quotes in the file of a method."""
    text = safe_call(lambda: inspect.getsource(sys.modules[method.__module__])).value or ""
    return next((word for word in EVALUATION if re.search(rf"[\"']{word}[\"']", text)), EVALUATION[0])
