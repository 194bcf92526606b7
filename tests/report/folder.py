"""The folder of a report: one run at a time writes into it."""

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOCK = ".lock"
"""Holds the number of the process that writes. What protects the folder is a lock of the system, which ends with it."""


class FolderError(Exception):
    """A folder that this run cannot use; the message is one line with the remedy."""


@dataclass(frozen=True)
class Claim:
    """A folder that no other process claims, until this one ends or closes it. `file`: the open file of the lock."""

    folder: Path
    file: int

    def close(self) -> None:
        """Leaves the folder to others; once."""
        with suppress(OSError):
            (self.folder / LOCK).unlink(missing_ok=True)
        os.close(self.file)


def claim(folder: Path) -> Claim:
    """Makes the folder if need be, and claims it. The claim of a process that has died is taken over.

    Raises:
        FolderError: it cannot be written, or another run writes into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(folder)
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
    except OSError as error:
        raise FolderError(f"{unwritten(error, folder)}: give another folder") from None
    return Claim(folder, file)


def unwritten(error: OSError, place: Path) -> str:
    """Such as "report/events.jsonl cannot be written (No space left on device)"."""
    return f"{error.filename or place} cannot be written ({error.strerror})"


def _locked(folder: Path) -> int:
    while True:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            process = os.read(file, 20).decode(errors="replace").strip() or "unknown"
            os.close(file)
            remedy = "wait until it has ended, or give another folder"
            raise FolderError(f"another run (process {process}) writes into {folder}: {remedy}") from None
        if _is_there(file, folder / LOCK):
            return file
        os.close(file)  # the run that held it has removed it meanwhile


def _is_there(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
