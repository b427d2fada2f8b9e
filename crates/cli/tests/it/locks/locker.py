"""A process that takes locks as it is told, line by line, and says what came of it."""
import errno
import fcntl
import os
import signal
import struct
import sys
import threading

FLOCK = "hhqqi4x"
MODES = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
files = {}


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Alarm(Exception):
    pass


def on_alarm(number, frame):
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise Alarm()


def ranged(command, name, mode, start, length):
    packed = struct.pack(FLOCK, MODES[mode], os.SEEK_SET, int(start), int(length), 0)
    return struct.unpack(FLOCK, fcntl.fcntl(files[name], command, packed))


def whole(name, mode, extra):
    kind = {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}[mode]
    fcntl.flock(files[name], kind | extra)


def add_one(name):
    text = os.pread(files[name], 64, 0)
    os.pwrite(files[name], b"%020d" % (int(text or b"0") + 1), 0)


def count(path, times, kind):
    """Adds to the number in a file, as often as told, each time under a lock and through a new descriptor."""
    for turn in range(int(times)):
        files["count"] = os.open(path, os.O_RDWR)
        if kind == "flock":
            whole("count", "w", 0)
        elif kind == "ofd":
            ranged(OFD_SETLKW, "count", "w", 0, 0)
        else:
            ranged(fcntl.F_SETLKW, "count", "w", 0, 0)
        add_one("count")
        if turn % 2:
            if kind == "flock":
                whole("count", "u", 0)
            elif kind == "ofd":
                ranged(OFD_SETLK, "count", "u", 0, 0)
            else:
                ranged(fcntl.F_SETLK, "count", "u", 0, 0)
        os.close(files["count"])


def do(words):
    verb, rest = words[0], words[1:]
    if verb == "open":
        files[rest[0]] = os.open(rest[1], os.O_RDWR | os.O_CREAT)
    elif verb == "open-to-write":
        files[rest[0]] = os.open(rest[1], os.O_WRONLY | os.O_CREAT)
    elif verb == "close":
        os.close(files.pop(rest[0]))
    elif verb == "dup":
        files[rest[1]] = os.dup(files[rest[0]])
    elif verb == "wait":
        ranged(fcntl.F_SETLKW, *rest)
    elif verb == "try":
        ranged(fcntl.F_SETLK, *rest)
    elif verb == "test":
        mode, _, start, length, pid = ranged(fcntl.F_GETLK, *rest)
        mode = {v: k for k, v in MODES.items()}[mode]
        return "free" if mode == "u" else "%s %d %d %d" % (mode, start, length, pid)
    elif verb == "wait-ofd":
        ranged(OFD_SETLKW, *rest)
    elif verb == "try-ofd":
        ranged(OFD_SETLK, *rest)
    elif verb == "flock":
        whole(rest[0], rest[1], 0)
    elif verb == "try-flock":
        whole(rest[0], rest[1], fcntl.LOCK_NB)
    elif verb == "alarm":
        # The rest is an order that the alarm ends. It comes again and again: one just before a call would not end it.
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, float(rest[0]), float(rest[0]))
        try:
            return do(rest[1:])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    elif verb == "pid":
        return str(os.getpid())
    elif verb == "count":
        count(*rest)
    elif verb == "fork-holder":
        # A child that keeps the descriptors until it is killed.
        child = os.fork()
        if child == 0:
            os.close(0)
            signal.pause()
        return str(child)
    elif verb == "crowd":
        # Threads that each wait for the file through a description of their own.
        def waiter():
            fd = os.open(rest[0], os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_SH)
            os.close(fd)
        files["crowd"] = [threading.Thread(target=waiter) for _ in range(int(rest[1]))]
        [thread.start() for thread in files["crowd"]]
    elif verb == "crowd-is-through":
        [thread.join() for thread in files.pop("crowd")]
    else:
        return "what is %s?" % verb
    return "ok"


for line in sys.stdin:
    try:
        say(do(line.split()))
    except Alarm:
        say("alarm")
    except OSError as error:
        # Two names have one number.
        say(errno.errorcode[error.errno].replace("EDEADLOCK", "EDEADLK"))
