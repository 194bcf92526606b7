"""The keeper: the parent of one worker alone, which reports to the judge how that has ended, and ends with the judge.

A candidate that ends its parent ends nothing of others. As a program it starts a command; it imports nothing of the
suite, and so starts soon.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

ENDING = {
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGABRT, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP),
}
"""Signals that end a process, and tell who sent them if it waits for them."""


def keep(channel: socket.socket, number: int) -> None:
    """Reports to the judge its own number and that of the worker, and exit status and peak of bytes in the end.

    A signal to the keeper ends both: then its number and that of its sender follow.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    _report(channel, [os.getpid(), number])
    threading.Thread(target=_end_with_judge, args=(channel,), daemon=True).start()
    threading.Thread(target=_end_by_signal, args=(channel,), daemon=True).start()
    _, status, usage = os.wait4(number, 0)
    _report(channel, [os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024])
    os._exit(0)


def _report(channel: socket.socket, given: object) -> None:
    channel.sendall(json.dumps(given).encode() + b"\n")


def _end_with_judge(channel: socket.socket) -> None:
    """What the worker was started as ends with this process, or as it sees the end of its input."""
    channel.recv(1)
    os._exit(0)


def _end_by_signal(channel: socket.socket) -> None:
    sent = signal.sigwaitinfo(ENDING)
    _report(channel, [-signal.SIGKILL, 0, sent.si_signo, sent.si_pid])
    os._exit(0)


def main(channel: socket.socket, variable: str, command: list[str]) -> None:
    """Starts a command with the streams of this process, in a session of its own, and one more variable."""
    name, _, value = variable.partition("=")
    try:
        child = subprocess.Popen(command, start_new_session=True, env={**os.environ, name: value})
    except OSError as error:
        _report(channel, error.strerror)
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    keep(channel, child.pid)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
