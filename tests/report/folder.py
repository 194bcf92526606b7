"""The folder of a report: one run at a time writes into it."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOCK = ".lock"
"""Holds the number of the process that writes. What protects the folder is a lock of the system, which ends with it."""


class FolderError(Exception):
    """A folder that this run cannot use; the message is one line with the remedy."""


@dataclass(frozen=True, eq=False)
class Claim:
    """A folder that no other process claims, until this one ends or releases it."""

    folder: Path
    file: IO[str]

    def release(self) -> None:
        """Leaves the folder to others."""
        if not self.file.closed:
            (self.folder / LOCK).unlink(missing_ok=True)
            self.file.close()


def claim(folder: Path) -> Claim:
    """Makes the folder if need be, and claims it. The claim of a process that has died is taken over.

    Raises:
        FolderError: it cannot be written, or another run writes into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            file = (folder / LOCK).open("a+", encoding="utf-8")
            _lock(file, folder)
            if _is_there(file, folder / LOCK):
                break
            file.close()  # the run that held it has removed it meanwhile
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
    except OSError as error:
        raise FolderError(f"{unwritten(error, folder)}: give another folder") from None
    return Claim(folder, file)


def unwritten(error: OSError, place: Path) -> str:
    """Such as "report/events.jsonl cannot be written (No space left on device)"."""
    return f"{error.filename or place} cannot be written ({error.strerror})"


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        process = file.read(20).strip() or "unknown"
        file.close()
        remedy = "wait until it has ended, or give another folder"
        raise FolderError(f"another run (process {process}) writes into {folder}: {remedy}") from None


def _is_there(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
