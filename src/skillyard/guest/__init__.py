"""The program inside a sandbox. It imports the standard library and this package alone.

The protocol is store-and-forward, so that it works over a socket, a pipe or a file: the whole request first,
append-only frames back, no answer from the host while code runs.

Request: one JSON object in UTF-8, up to end of file::

    {"v": 1, "op": "call",
     "code": "…source…" | null,            run_code: the source of a temporary module, kept in memory
     "skill": "a.b.c" | null,              execute_skill: the skill whose export is called
     "entrypoint": "main" | null,          the function to call; null: main, and code without it is a script
     "args": {…},
     "skills": {"a.b.c": {"root": "/skills/a.b.c", "entry": "code/main.py" | null}},
     "blobs": {"blob:…": {"kind": "text/csv", "size": 12}},      readable, at /blobs/<blob id>
     "blob_prefix": "blob:<32 hex>-",      the guest numbers its own blobs 1, 2, … behind it
     "env": {"NAME": "value"},             added to os.environ (declared secrets)
     "max_blobs": 1000,                    how many blobs the run may write

     optional, with these defaults:
     "max_blob_bytes": 4294967296,         all blobs together
     "max_open_blobs": 32,                 blobs begun and not yet ended
     "max_result_bytes": 16777216,         the returned value as JSON
     "files": {"count": 100, "each_bytes": 67108864, "bytes": 268435456},    left in "out" below the workspace; none
     "workspace": "/workspace",            the working directory
     "blob_root": "/blobs"}                where the readable blobs are

With ``"op": "command"`` a program runs instead (:mod:`.shell`), and the files that it names are sent::

     "command": {"skill": "a.b.c",         whose files are copied to "skill" below the workspace
                 "view": true,             false: they are not copied, and nothing can be written there
                 "language": "bash",       or python, javascript, typescript
                 "text": "…", "workdir": "skill", "env": {"NAME": "value"},
                 "inputs": [["blob:…", "skill/data.csv"], …], "outputs": ["skill/out/*.png", …]}

A command that listens has a ``service`` too. It tells with S how it goes::

     "service": {"ports": [8000], "ready_pattern": "…", "startup_s": 60.0, "restart": "never" or "on-failure"}

With ``"op": "interpreter"`` a program begins that runs cells until it is ended; it is named by ``"interpreter": "…"``.
With ``"op": "cell"`` the ``code`` of the request runs there, and its names stay (:mod:`.programs.interpreter`). A cell
exits with 1 when the interpreter has ended; without code it only asks whether that answers.

With ``"op": "collect"`` nothing is called: what an earlier program left is sent, and its last stack.

Frames: one byte of type, four bytes of big-endian payload length, payload.

    B  {"n": 1, "kind": "text/plain"}      a blob begins; n counts 1, 2, … in the order of these frames
                                           with "path", it is that file of those which the run left
    D  4 bytes n, bytes                    a piece of blob n, at most 1 MiB
    E  {"n": 1, "size": 12}                blob n is complete
    A  {"n": 1}                            blob n is abandoned and does not exist
    N  {"script": true, "skipped": [[path, why], …], "others": [name, …], "more": 0, "stack": "…"}
                                           no function was called; files of "out" that are not sent; what lies beside
                                           "out"; how many more of both. Each is left out where there is nothing to say
    V  {"main": true, "formats": {"text/plain": "…", …}}         a value that a cell shows; only with "shows": most in
                                           its request, and in that of its interpreter, which takes a "cwd" then
    T  bytes                               standard error of such a cell
    S  {"ready": true, "restarts": 0, "exit_code": 1}            how a service goes; exit_code of its last end, if any
                                           without a payload: as before
    R  JSON                                what the entrypoint returned, an object; the last frame
    X  {"type": …, "message": …, "traceback": …, "errno": …}     it raised; the last frame

``errno`` is there for an OSError that has one. A blob without E when the channel ends does not exist. A program that
ends without R or X (``os._exit``, a signal) has said nothing: its exit status counts.

Everything in a frame is hostile input to the host: foreign code can write to the channel too.

The run is over when its function has returned: threads and child processes that are left behind are not waited
for, and functions registered with ``atexit`` are not called.
"""
