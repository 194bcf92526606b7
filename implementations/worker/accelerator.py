"""The accelerator of a worker: whether a fault of a kernel has left its process without one."""

from attention_conformance.spec.optional import imported


def fault() -> str:
    """What CUDA answers to every call from now on, as after an access to a wrong address; empty if it computes."""
    torch = imported("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""
