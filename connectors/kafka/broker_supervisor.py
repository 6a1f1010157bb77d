"""A small process between a program and its development broker, so that the broker never outlives the program.

It starts the command that stands after `--`, as its own child, and obeys the program through a pipe (its stdin):

    b"t"    ask the broker to end (SIGTERM)
    b"k"    end it at once (SIGKILL)
    EOF, or the program is gone: end it at once and remove the directories named with `--remove`

Why a process of its own: Linux can kill a child when its parent dies, but "parent" means the *thread* that started
it, so a broker started from a short-lived thread would die with that thread. This process has one thread, which
lives as long as it does; if even this process is killed, the kernel takes the broker along.

The program is watched twice. EOF is immediate, but a forked child of the program may hold the pipe open; the change
of the parent's id cannot be hidden, and is looked for four times a second.

The file runs by its path, with the standard library alone (`python -IS`), because it should start in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_POLL_INTERVAL_S = 0.25
_PR_SET_PDEATHSIG = 1


def _die_with(supervisor_pid: int) -> None:
    """Runs in the child before the command: the kernel kills it when the supervisor dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The supervisor may have died just before the kernel was told.
    if os.getppid() != supervisor_pid:
        os._exit(1)


def _supervise(child: subprocess.Popen[bytes], program_pid: int) -> bool:
    """Wait until the child has ended. True: the program still lives; False: it is gone and the child was killed."""
    commands = {b"t": child.terminate, b"k": child.kill}
    while child.poll() is None:
        readable, _, _ = select.select([0], [], [], _POLL_INTERVAL_S)
        command = os.read(0, 1) if readable else None
        if command == b"" or os.getppid() != program_pid:
            child.kill()
            child.wait()
            return False
        if command is not None:
            commands[command]()
            # After an order to end the child's exit is awaited closely, since a caller waits for it.
            _await_exit(child)
    return os.getppid() == program_pid


def _await_exit(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(timeout=_POLL_INTERVAL_S)
    except subprocess.TimeoutExpired:
        pass


def main(arguments: list[str]) -> int:
    """`--parent PID [--remove DIRECTORY] -- COMMAND...`; writes the command's process id to stdout as one line."""
    separator = arguments.index("--")
    options, command = arguments[:separator], arguments[separator + 1 :]
    program_pid = int(options[options.index("--parent") + 1])
    remove = options[options.index("--remove") + 1] if "--remove" in options else None
    supervisor_pid = os.getpid()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        preexec_fn=lambda: _die_with(supervisor_pid),
    )
    os.write(1, f"{child.pid}\n".encode())
    os.close(1)
    program_lives = _supervise(child, program_pid)
    if remove is not None and not program_lives:
        shutil.rmtree(remove, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
