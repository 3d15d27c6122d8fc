"""The agent: it supervises a sandbox that has no keeper, from inside, over one byte channel.

It starts programs, keeps their output, deadlines and endings, ends whole trees, serves files and forwards ports. It
imports the standard library and the guest alone, and runs from the guest's bundle::

    python3 -I -S guest.pyz agent listen PATH|fd:N    serve a unix socket in the foreground: the command of a container
    python3 -I -S guest.pyz agent serve PATH          the same, with standard input and output as the first channel
    python3 -I -S guest.pyz agent start PATH          the same in the background; returns when the socket is there
    python3 -I -S guest.pyz agent connect PATH        join standard input and output to the socket: one channel
    python3 -I -S guest.pyz agent text PATH           the same, its output as text for a way that takes nothing else
    python3 -I -S guest.pyz agent device PATH         serve a character device (virtio-serial), again after a hang-up

So a channel is the standard input and output of ``connect`` under ``docker exec -i``, ssh or a remote command, or a
socket or a device by itself. Up to 16 channels may be open; programs and output belong to none of them. A channel that
is lost ends nothing: another one finds programs by their ids and reads from any offset.

Settings are one JSON object, in the variable ``SKILLYARD_AGENT`` or as the first line of standard input
(:mod:`.command`).

Frames: one byte of type, four bytes of exchange number, four bytes of payload length (both big-endian), payload. The
host numbers its exchanges 1, 2, … and the agent opens none.

    H  JSON                   hello, on exchange 0: see below
    O  {"op": …}              host: begin an exchange
    D  bytes, at most 64 KiB  data, in either direction, as long as the receiver has given credit
    E                         the sender has no more data
    W  4 bytes                credit for so many bytes more; 256 KiB are given to both at the beginning
    C                         host: give the exchange up
    R  JSON                   agent: the result; the exchange is over
    F  {"kind", "text", …}    agent: it failed; the exchange is over

Hello: the host says ``{"versions": [1, 2, 3, 4], "nonce": …}``. The agent answers
``{"version": 4, "instance": …, "nonce": …, "proof": …}``, or ``{"versions": […]}`` where it knows none of them. The
host says ``{"proof": …}``. Proofs are made with the key of the settings (:func:`.wire.prove`): a program that replaces
the socket cannot answer, and one that finds the socket is not served. The instance differs for each agent, so that a
new one is not taken for an old one.

A host that sends the settings over the very way that becomes the first channel may give the agent's ``nonce`` for it
with them. Then it says both hellos and all else at once, before foreign code is there. No other channel is greeted with
that nonce, so what was recorded of the first channel proves nothing on another.

Operations, with their further fields:

    start      id, args, env, cwd, stdin, timeout_ms, log_bytes, stderr_bytes, channel_bytes, ring, waits; or ``guest``
               with the request as data, and ``clear`` or ``command`` where that is its operation. An id that was
               started before gives that program: nothing is started twice
    terminal   …, terminal            the same on a terminal, of which it gives [rows, columns] (version 3)
    resize     id, rows, columns      another size of it (version 3)
    follow     …, after               starts a guest behind the program ``after``, when that has ended by itself and
                                      nothing else of ours is at work, and tells its ending and its channel (version 4)
                                      A clearing with nothing to do starts nothing: its ending tells a use of 0
    process    id                     the limits of a program, and the time that it has left
    list                              the newest programs
    output     id, stream, offset     the stream from there on as data, until the program has ended
    wait       id                     its ending, with the sizes of its output
    kill       id, reason
    input      id                     data for its standard input; answered when it was taken
    close      id                     end of its standard input
    files                             a byte stream both ways to a worker for files (:mod:`skillyard.guest.files`)
    forward    port                   a byte stream both ways to a port on loopback; an empty piece says that it stands
    listen     port                   listens on a port of loopback, for as long as the agent lives
    accept     port, window           the next connection to that port, as a byte stream both ways; an empty piece says
                                      that there is one. ``window`` is the host's credit at the beginning
    lease                             begins the lease anew; with ``kept`` the agent has none from now on, and says so
    end                               ends everything, tells the usage, and exits

Trees. As pid 1 the agent is the parent of programs. A kill ends the program and its descendants; a process that has
lost its parents lives on while any program runs, and is ended with the last one. Where the agent is not pid 1, each
program has a supervisor that takes its orphans in (:mod:`.supervisor`): a kill ends them too, and what a program leaves
lives on after its end. In a sandbox for one program all end with it. When the agent ends, everything does.

A process may go on as another, again and again, faster than anybody finds it. As pid 1 the agent stops everybody then,
ends who is to be ended, and lets the others go on. Elsewhere it runs into the limit of processes, for nobody reaps
what it leaves. Where neither helps within seconds, as with a process that cannot be killed, the ending says so and the
agent ends; the host takes away what an agent beside pid 1 leaves.

Guests. The interpreter of the next one begins ahead after a clearing, and in a sandbox of one program where the
settings say ``ahead``. It is used once, and never there beside a program (:mod:`.start`). Where no foreign code is in
a guest, a fork of the agent is enough: for one that clears the sandbox, and for one of a command, which executes
programs.

Promises. The agent is not dumpable, so programs of its own user can neither trace it nor read its memory, environment
and descriptors; the supervisors of programs and the workers for files are not dumpable either.
Its descriptors are closed in programs. As pid 1 it cannot be ended by a signal from inside. Where it is root and the
settings name a user for programs, they cannot signal it, and its socket is in a directory that they cannot enter.

Not promised: where programs have the agent's user, they can take its limits away (prlimit(2)), and where it is not pid
1, they can kill it; then all ends with it, and the host says ``lost``. They can kill the supervisor of a program,
which then ends as ``lost``. A program that replaces the socket can pass frames on and change them. A program that
becomes root inside owns the agent. So the host takes all that comes from an agent as hostile: a lying one harms its own
sandbox alone. Limits of memory, processors, processes and disk are the sandbox's, not the agent's. /proc must be
mounted.
"""
