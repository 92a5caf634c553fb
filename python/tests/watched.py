"""Runs a program that may die or hang."""

import select
import subprocess


def follow(command, silence, take):
    """Runs a program, and calls take() with each line that it writes. Returns why the program has not ended well, or an
    empty text: its status, or that it was silent for longer than `silence` seconds, in which case it is killed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)  # 0: for select()
    while select.select([process.stdout], [], [], silence)[0]:
        if line := process.stdout.readline():
            take(line.decode().rstrip("\n"))
        else:
            return f"the process ended with {status}" if (status := process.wait()) else ""
    process.kill()
    process.wait()
    return f"no answer in {silence} s"
