"""What runs inside a sandbox: the standard library only, nothing of ours is imported.

The protocol is store-and-forward, so that it works over a socket, a pipe or a file: the whole request first,
append-only frames back, no answer from the host while code runs.

Request: one JSON object in UTF-8, up to end of file::

    {"v": 1, "op": "call",
     "code": "…source…" | null,            run_code: saved as /workspace-independent temporary module
     "skill": "a.b.c" | null,              execute_skill: the skill whose export is called
     "entrypoint": "main",                 the function to call with the one positional argument args
     "args": {…},
     "skills": {"a.b.c": {"root": "/skills/a.b.c", "entry": "code/main.py" | null}},
     "blobs": {"blob:…": {"kind": "text/csv", "size": 12}},      readable, at /blobs/<blob id>
     "blob_prefix": "blob:<32 hex>-",      the guest numbers its own blobs 1, 2, … behind it
     "env": {"NAME": "value"},             added to os.environ (declared secrets)
     "max_blobs": 1000}

Frames: one byte of type, four bytes of big-endian payload length, payload.

    B  {"n": 1, "kind": "text/plain"}      a blob begins
    D  4 bytes n, bytes                    a piece of blob n, at most 1 MiB
    E  {"n": 1, "size": 12}                blob n is complete
    R  JSON                                what the entrypoint returned; the last frame
    X  {"type": …, "message": …, "traceback": …}     it raised; the last frame

Everything in a frame is hostile input to the host: foreign code can write to the channel too.
"""
