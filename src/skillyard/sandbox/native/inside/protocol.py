"""What the keeper and the inside of a sandbox agree on."""

from __future__ import annotations

CHANNEL_FD = 3
"""A guest's channel: the request comes in on it, the frames go out."""

STACK_FD = 4
"""The descriptor of the last stack. The worker writes to it when it is told to end, and a program that is started
afterwards reads it."""

DONE = b"Z\0\0\0\0"
"""The last bytes on the channel of a guest that came to its end in order; the keeper takes them away."""

INTO_CGROUP, PLAIN = b"+", b" "
"""The first byte of an order to the zygote: whether the last descriptor is a cgroup to be cloned into."""

READY = b'{"ready":true}'
"""Init's first word to the keeper."""
