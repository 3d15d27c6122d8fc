"""The words that keeper and inside share. Each sandbox of gVisor loads them, so this module imports nothing."""

CHANNEL_FD = 3
"""A guest's channel: the request comes in on it, the frames go out."""

STACK_FD = 4
"""The descriptor of the last stack. The worker writes to it when it is told to end, and a program that is started
afterwards reads it."""

DONE = b"Z\0\0\0\0"
"""The last bytes on the channel of a guest that came to its end in order; the keeper takes them away."""

READY = b'{"ready":true}'
"""Init's first word to the keeper."""

INSIDE_ID = 65532
WORKSPACE, TMP, SHM = "/workspace", "/tmp", "/dev/shm"  # noqa: S108
WRITABLE = {"workspace": WORKSPACE, "shm": SHM, "tmp": TMP}
"""Places by the names of their directories in the box. The last one covers the box, which is mounted there."""
CODE_ROOT = "/opt/skillyard"
"""The directory of our modules that run in here."""
