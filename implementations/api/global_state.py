"""Global state: what a call may read of the process and has to leave as it is, and how it is restored."""

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType

import numpy as np

from attention_conformance.implementations.api.process_state import process_state
from attention_conformance.spec.optional import imported, optional

torch = optional("torch")
threadpoolctl = optional("threadpoolctl")

THREADS = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
"""Variables by which a user sets the number of threads of NumPy's products."""
TINY, ONE = 1e-310, 1.0
"""A subnormal float64 number, and a factor that is applied anew each time: the product is 0 where such are flushed."""


def global_state() -> dict[str, object]:
    """What a call could disturb, by names for messages."""
    return {
        **(_of_torch() if imported("torch") else {}),
        "random state of numpy": np.random.get_state(legacy=True)[1].tobytes(),  # type: ignore[index]
        "random state of Python": random.getstate(),
        "error handling of numpy": tuple(sorted(np.geterr().items())),
        "flushing of subnormal numbers": _flushes(),
        **process_state(),
    }


def _of_torch() -> dict[str, object]:
    return {
        "random state of torch": torch.get_rng_state().numpy().tobytes(),
        "gradient mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "number of threads": torch.get_num_threads(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "precision of float32 products": torch.get_float32_matmul_precision(),
    }


def _flushes() -> bool:
    return TINY * ONE == 0.0


@contextmanager
def kept_global_state() -> Iterator[None]:
    """Puts back what other calls and the suite's own arithmetic depend on, whatever the call has done to it.

    The random states are left as they are: nothing but the candidate draws from them.
    """
    errors = np.geterr()
    library = imported("torch")
    with _kept_by_torch(library) if library else nullcontext():
        try:
            yield
        finally:
            np.seterr(**errors)


@contextmanager
def _kept_by_torch(torch: ModuleType) -> Iterator[None]:
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    device, precision, flushes = torch.get_default_device(), torch.get_float32_matmul_precision(), _flushes()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if _flushes() != flushes:
            torch.set_flush_denormal(flushes)


@contextmanager
def loading() -> Iterator[None]:
    """What is loaded keeps its default dtype, threads and precision, but not what the suite's own arithmetic needs."""
    errors, gradients = np.geterr(), torch and torch.is_grad_enabled()
    device = torch and torch.get_default_device()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        np.seterr(**errors)
        if torch:
            torch.set_grad_enabled(gradients)
            if torch.get_default_device() != device:
                torch.set_default_device(device)


def compute_on_one_thread() -> None:
    """Small cases take less time so, by far where the cores are busy; a number that the user has set stays."""
    multiply_on_one_thread()
    if torch and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def multiply_on_one_thread() -> None:
    """The same for NumPy alone, whose threads would wait for each other after each small product of matrices."""
    if threadpoolctl and not THREADS & os.environ.keys():
        threadpoolctl.threadpool_limits(1, user_api="blas")


def start_generators(seed: int) -> None:
    """Starts the generators of torch, NumPy and Python at a seed."""
    if imported("torch"):
        seed_torch(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def random_states_from(seed: int) -> Iterator[None]:
    """Starts every generator of random numbers at a seed, and puts them all back."""
    numbers, choices = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]) if imported("torch") else nullcontext():
        start_generators(seed)
        yield
    np.random.set_state(numbers)
    random.setstate(choices)


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Starts the generators of torch alone at a seed, and puts that of the processor back."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        yield


@contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """The same for NumPy's own generator."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def seed_torch(seed: int) -> None:
    """As torch.manual_seed, which takes down its stack each time for a device that is not in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
