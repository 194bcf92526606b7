"""What a candidate prints: read at once, kept from its end, and shown without control characters."""

from __future__ import annotations

import os
import select
import threading
from typing import IO

from attention_conformance.implementations.worker.limits import KEPT, LINES, LONGEST, PIECE, SHOWN


def shortened(text: object, most: int = LONGEST) -> str:
    """A text of the candidate on one line, without control characters, and not too long."""
    plain = "".join(c if c.isprintable() else " " for c in str(text)[: 2 * most])
    return plain if len(plain) <= most else f"{plain[:most]}... ({len(str(text))} characters)"


class Output:
    """What the candidate prints, read by a thread so that it never waits for a reader."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.kept = b""
        self.total = 0
        self._taken = 0
        self._stream = stream
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with self._stream:
            while self._is_ready(None) and self._read():
                pass

    def _read(self) -> bool:
        """Reads what is there now, which is no more than a pipe holds; False at the end of the stream."""
        with self._reading:
            if self._stream.closed or not self._is_ready(0):
                return not self._stream.closed
            piece = os.read(self._stream.fileno(), PIECE)
            self.total += len(piece)
            self.kept = (self.kept + piece)[-KEPT:]
            return bool(piece)

    def _is_ready(self, milliseconds: int | None) -> bool:
        ready = select.poll()
        ready.register(self._stream.fileno(), select.POLLIN)
        return bool(ready.poll(milliseconds))

    def taken(self) -> str:
        """What was printed since the last time, without control characters; of much, the end."""
        self._read()  # what was printed before an answer, although the thread did not run since
        new, self._taken = self.total - self._taken, self.total
        kept = self.kept[-min(new, SHOWN) :] if new else b""
        text = "".join(c if c.isprintable() or c == "\n" else " " for c in kept.decode(errors="replace"))
        return text if new <= SHOWN else f"({new - SHOWN} bytes before this are not shown)\n{text}"

    def last_lines(self) -> str:
        """The last lines, as one."""
        self._thread.join(0.2)
        lines = [line for line in self.kept[-4096:].decode(errors="replace").splitlines() if line.strip()]
        return shortened(" / ".join(line.strip() for line in lines[-LINES:]))
