"""Out of memory: how an exception says so, where libraries have no type of their own for it."""

NO_ALLOCATION = ("std::bad_alloc", "can't allocate memory", "Cannot allocate memory", "out of memory")
"""What C++, torch and the C library write where an allocation fails: there is no other sign of it."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception says that there was too little memory; torch and JAX have no type for it on the CPU."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error)[:2000] for words in NO_ALLOCATION)
