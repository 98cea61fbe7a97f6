"""What a program in a box may not ask of the kernel: a seccomp filter, as bubblewrap takes it.

Forbidden is what would hold memory that is in no process and no file system that a watchdog sees, a namespace in a
namespace, and a network. The program is told an error, as by a kernel that lacks these; nothing of Python, NumPy and
Numba needs them. A filter is a program of eight bytes an instruction (Linux, Documentation/networking/filter.rst).
"""

import errno
import fcntl
import os
import platform
import struct
import tempfile

# Numbers of system calls: Linux, arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl.
FORBIDDEN = {  # name: (x86_64, aarch64)
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "vmsplice": (278, 75), "io_setup": (206, 0),
    "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "bpf": (321, 280),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268),
    "setsockopt": (54, 208),  # a socket's buffers may be asked to hold megabytes
    "sched_setaffinity": (203, 122),  # the core that it has is what keeps others' work free of it
    "mount": (165, 40), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
}  # fmt: skip
CLONE, CLONE3, SOCKETS = (56, 220), 435, ((41, 198), (53, 199))  # socket, socketpair
MMAP = (9, 222)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
X32 = 0x40000000  # another set of numbers for the same calls, on x86_64
NAMESPACES = 0x7E020000  # CLONE_NEW...
AF_UNIX = 1
SHARED_WITHOUT_A_FILE = 0x21  # MAP_SHARED | MAP_ANONYMOUS: all of it stays while one page is mapped, and counts

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT, FOURTH_ARGUMENT = 0, 4, 16, 40  # offsets in struct seccomp_data
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000


class Unknown(Exception):
    """There is no filter for this processor; the message says so in a sentence."""


def filter_file(machine=None):
    """Return an open file with the filter for this machine, to be read from its start. Raises Unknown."""
    code = program(machine or platform.machine())
    with tempfile.TemporaryFile() as file:
        file.write(code)
        file.seek(0)
        # Where a standard stream is closed the file may have got its number, which the box's own stream takes.
        return os.fdopen(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3), "rb")


def program(machine):
    """Return the filter for a machine, as `platform.machine` calls it, as bytes. Raises Unknown."""
    if machine not in MACHINES:
        raise Unknown(f"a box needs one of the processors {', '.join(MACHINES)}, and this is {machine}.")
    column, kind = MACHINES[machine]
    code = [(LOAD, MACHINE), (EQUAL, kind, 1, 0), (RETURN, KILL), (LOAD, NUMBER)]
    code += [(AT_LEAST, X32, 0, 1), (RETURN, ERROR | errno.ENOSYS)]
    code += [(EQUAL, CLONE3, 0, 1), (RETURN, ERROR | errno.ENOSYS)]  # its flags are out of sight; clone is tried then
    for numbers in FORBIDDEN.values():
        code += [(EQUAL, numbers[column], 0, 1), (RETURN, ERROR | errno.EPERM)]
    code += [(EQUAL, CLONE[column], 0, 4), (LOAD, FIRST_ARGUMENT), (ANY_BIT, NAMESPACES, 0, 1)]
    code += [(RETURN, ERROR | errno.EPERM), (RETURN, ALLOW)]
    code += [(EQUAL, MMAP[column], 0, 5), (LOAD, FOURTH_ARGUMENT), (AND, SHARED_WITHOUT_A_FILE)]
    code += [(EQUAL, SHARED_WITHOUT_A_FILE, 0, 1), (RETURN, ERROR | errno.EPERM), (RETURN, ALLOW)]
    for numbers in SOCKETS:
        code += [(EQUAL, numbers[column], 0, 4), (LOAD, FIRST_ARGUMENT), (EQUAL, AF_UNIX, 1, 0)]
        code += [(RETURN, ERROR | errno.EAFNOSUPPORT), (RETURN, ALLOW)]
    code.append((RETURN, ALLOW))
    return b"".join(struct.pack("=HBBI", step[0], *(step[2:] or (0, 0)), step[1]) for step in code)
