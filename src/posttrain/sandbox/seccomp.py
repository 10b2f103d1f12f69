"""The system calls that a program in a box may not make, as a seccomp program for x86_64 and aarch64.

Namespaces take away what a call could reach; this takes away the calls that make processes and threads, open sockets,
signal or trace others, hold memory that no limit counts, or have had holes in the kernel. A call newer than the table
is answered as by an older kernel.
"""

import platform
import struct

_X32 = 0x40000000  # numbers of x86_64's second calling convention begin here
_NEWEST = 461
_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of classic BPF
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # audit's number, column of the table

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # processes and threads; clone3 passes its flags in memory, and without it libc falls back to clone
    **{"fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "execveat": (322, 281)},
    # network; a pair of sockets reaches nobody, and asyncio needs it
    **{"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201)},
    # other processes
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "ptrace": (101, 117), "kcmp": (312, 272)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434)},
    **{"pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "process_vm_readv": (310, 270)},
    **{"process_vm_writev": (311, 271), "process_madvise": (440, 440), "setpriority": (141, 140)},
    # namespaces and mounts
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430)},
    **{"fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    # memory that is no process' own
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196)},
    **{"msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
    **{"mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230)},
    # wide interfaces of the kernel
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425)},
    **{"io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217)},
    **{"request_key": (249, 218), "personality": (135, 92), "modify_ldt": (154, None), "fanotify_init": (300, 262)},
    **{"inotify_init": (253, None), "inotify_init1": (294, 26)},
    # the machine
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104)},
    **{"kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225)},
    **{"acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112)},
    **{"clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162)},
    **{"iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116)},
}
"""Refused system calls with their numbers on x86_64 and on aarch64."""


def seccomp_program(machine: str = "") -> bytes | None:
    """The program as the kernel takes it, an array of `sock_filter`; None on a machine that has no table here."""
    if (machine or platform.machine()) not in _ARCHITECTURES:
        return None
    number, column = _ARCHITECTURES[machine or platform.machine()]
    program = [
        (_LOAD, 0, 0, 4),  # the architecture of the call
        (_EQUAL, 1, 0, number),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
        (_AT_LEAST, 0, 1, _NEWEST + 1),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for name, numbers in REFUSED.items():
        if (call := numbers[column]) is not None:
            answer = _ENOSYS if name == "clone3" else _EPERM
            program += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERRNO | answer)]
    return b"".join(struct.pack("=HBBI", *line) for line in [*program, (_RETURN, 0, 0, _ALLOW)])
