"""What every run executes lies close together, and what a worker makes first lies behind it."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.sandbox.native.compiled import NEAR, PROJECT, make_library

HARNESS = r"""
#include "{source}"
#include <pthread.h>
#include <stdlib.h>

enum {{ SLOTS = 3000, ROUNDS = 200000 }};
static struct allocator set[DOMAINS];
static unsigned char *held[SLOTS];
static size_t sizes[SLOTS];
static uint64_t seed = 88172645463325252ull;

static void *m(void *c, size_t n) {{ return c == set ? malloc(n ? n : 1) : NULL; }}
static void *k(void *c, size_t a, size_t n) {{ return c == set ? calloc(a ? a : 1, n ? n : 1) : NULL; }}
static void *r(void *c, void *p, size_t n) {{ return c == set ? realloc(p, n ? n : 1) : NULL; }}
static void f(void *c, void *p) {{ if (c == set) free(p); }}
static void get_one(int d, struct allocator *to) {{ (void)d; *to = (struct allocator){{set, m, k, r, f}}; }}
static void set_one(int d, struct allocator *from) {{ set[d] = *from; }}
static size_t any(size_t below) {{ seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed % below; }}

static void fill(int i) {{ memset(held[i], i & 255, sizes[i]); }}

static void check(int i, size_t size)
{{
    for (size_t at = 0; at < size; at++)
        if (held[i][at] != (i & 255))
            exit(3);
    if ((uintptr_t)held[i] % 16)
        exit(4);
}}

/* Returns how many of the blocks lie in the region. */
static int use(int rounds)
{{
    struct allocator *a = &set[OBJECTS];
    int here = 0;
    while (rounds--) {{
        int i = (int)any(SLOTS);
        size_t size = any(8) ? any(200) : any(4000);
        if (held[i] == NULL && any(2)) {{
            held[i] = a->malloc(a->context, sizes[i] = size);
            fill(i);
        }} else if (held[i] == NULL) {{
            held[i] = a->calloc(a->context, 3, size / 3);
            sizes[i] = size / 3 * 3;
            for (size_t at = 0; at < sizes[i]; at++)
                if (held[i][at])
                    exit(5);
            fill(i);
        }} else if (any(3)) {{
            check(i, sizes[i]);
            a->free(a->context, held[i]);
            held[i] = NULL;
        }} else {{
            check(i, sizes[i]);
            held[i] = a->realloc(a->context, held[i], size);
            check(i, size < sizes[i] ? size : sizes[i]);
            sizes[i] = size;
            fill(i);
        }}
        here += held[i] && is_here(held[i]);
    }}
    return here;
}}

static void free_all(void)
{{
    for (int i = 0; i < SLOTS; i++) {{
        set[OBJECTS].free(set[OBJECTS].context, held[i]);
        held[i] = NULL;
    }}
}}

/* Another thread frees what is here, and takes nothing from here. */
static void *other(void *none)
{{
    free_all();
    return use(ROUNDS) ? none : NULL;
}}

int main(void)
{{
    pthread_t thread;
    void *found = NULL;
    int one = 1;
    sy_begin_near();
    if (state.owner)
        return 6;
    sy_near(get_one, set_one);
    if (use(ROUNDS))
        return 7;
    sy_begin_near();
    if (use(ROUNDS) < ROUNDS / 8 || state.used > REGION)
        return 8;
    if (set[MEMORY].calloc(set[MEMORY].context, SIZE_MAX / 4 + 2, 4) != NULL)
        return 9;
    if (pthread_create(&thread, NULL, other, &one) || pthread_join(thread, &found) || found)
        return 10;
    if (use(ROUNDS) == 0)
        return 11;
    free_all();
    return 0;
}}
"""


def test_blocks_keep_what_they_hold(tmp_path: Path) -> None:
    """Under the sanitizers of addresses and of undefined behaviour, by two threads."""
    source, program = tmp_path / "harness.c", tmp_path / "harness"
    source.write_text(HARNESS.format(source=NEAR))
    command = ["cc", "-std=c99", "-g", "-O1", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    built = subprocess.run([*command, "-o", program, source], capture_output=True, text=True, timeout=60)
    if built.returncode:
        pytest.skip(f"no compiler with sanitizers: {built.stderr.strip()[-100:]}")
    options = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}  # the first: where processes are traced
    done = subprocess.run([program], capture_output=True, timeout=60, env=options)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


GATHER = """
import ctypes, gc, json, sys, threading
sys.path.insert(0, sys.argv[1])
from skillyard.guest import call, main as guest
from skillyard.sandbox.native.inside import near
library = ctypes.PyDLL(sys.argv[2])
started, before = guest.serve, call.load_code.__code__
guest.prepare(gather=lambda run, *more: near.gather(library, run, more))
moved = [guest.serve, guest.serve.__code__, call.load_code, call.Call.make, call.Call.make.__code__]
library.sy_begin_near()
made = [[str(n)] * 3 for n in range(40000)]
there = [id(each) for each in made[200:300]]
def other():
    made.reverse()
    del made[:30000]
    return made.extend([n] for n in range(5000))
threads = [threading.Thread(target=other) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.collect()
names = {f"{kind.__module__}.{kind.__qualname__}" for kind in map(type, made)}
same = [started.__code__ is guest.serve.__code__, before is call.load_code.__code__, started is guest.serve]
told = {"same": same, "serve": guest.serve.__qualname__, "names": sorted(names)}
places = [id(each) for each in moved] + there
print(json.dumps(told | {"spread": max(places) - min(places)}))
"""


def test_what_a_run_executes_is_moved_together(tmp_path_factory: pytest.TempPathFactory) -> None:
    """So are the first objects that a worker makes. Functions that were moved do what they did."""
    library: ctypes.PyDLL = make_library(tmp_path_factory)
    command = [sys.executable, "-I", "-c", GATHER, str(PROJECT / "src"), library._name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    spread = told.pop("spread")
    assert told == {"same": [True, False, False], "serve": "serve", "names": ["builtins.list"]}
    assert spread < 1 << 20
