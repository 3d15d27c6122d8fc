/* Memory in which what one run touches lies close together.
 *
 * A fork copies each page that it writes to, if for one count of references. The interpreter strews small objects over
 * all the pages that it ever had, and fills the holes in them. So a zygote puts what every run executes into one region
 * (near.py), and its workers take the memory of their first objects from the fresh pages behind, which need no copy.
 * Behind the region, and for other threads, the interpreter's own allocators go on.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { REGION = 1 << 20, PAGE = 4096, UNIT = 16, HEAD = 8, MOST = 2040, CLASSES = (MOST + HEAD) / UNIT + 1 };
enum { MEMORY = 1, OBJECTS = 2, DOMAINS }; /* PyMemAllocatorDomain: its callers hold the interpreter lock */

/* PyMemAllocatorEx, since Python 3.5. */
struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

static struct allocator usual[DOMAINS];
static char region[REGION] __attribute__((aligned(4096)));
/* A block is a whole number of units; the head before what it holds tells how many. A free one holds the next. */
static struct {
    uintptr_t owner; /* the one thread that takes from here; 0: none does */
    size_t used;
    void *free[CLASSES];
} state = {0, HEAD, {0}};

/* Interpreters of their own lock (PEP 684) share these functions, and each has threads of its own. */
static uintptr_t this_thread(void)
{
    uintptr_t found;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(found));
#elif defined(__aarch64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(found));
#else
#error "a machine that this library does not know"
#endif
    return found;
}

static int is_here(const void *at)
{
    return (uintptr_t)at - (uintptr_t)region < REGION;
}

static uint64_t *head_of(void *at)
{
    return (uint64_t *)(void *)((char *)at - HEAD);
}

static void *take(size_t size)
{
    if (size > MOST || state.owner != this_thread())
        return NULL;
    size_t units = (size + HEAD + UNIT - 1) / UNIT;
    void *at = state.free[units];
    if (at) {
        memcpy(&state.free[units], at, sizeof at);
        return at;
    }
    if (units * UNIT > REGION - HEAD - state.used)
        return NULL;
    at = region + state.used + HEAD;
    state.used += units * UNIT;
    *head_of(at) = units;
    return at;
}

static void *near_malloc(void *context, size_t size)
{
    const struct allocator *own = context;
    void *at = take(size);
    return at ? at : own->malloc(own->context, size);
}

static void *near_calloc(void *context, size_t count, size_t size)
{
    const struct allocator *own = context;
    void *at = size && count > MOST / size ? NULL : take(count * size);
    return at ? memset(at, 0, count * size) : own->calloc(own->context, count, size);
}

/* A block that another thread frees is not used again. */
static void near_free(void *context, void *at)
{
    const struct allocator *own = context;
    if (!is_here(at)) {
        own->free(own->context, at);
    } else if (state.owner == this_thread()) {
        memcpy(at, &state.free[*head_of(at)], sizeof at);
        state.free[*head_of(at)] = at;
    }
}

static void *near_realloc(void *context, void *at, size_t size)
{
    const struct allocator *own = context;
    if (at == NULL)
        return near_malloc(context, size);
    if (!is_here(at))
        return own->realloc(own->context, at, size);
    size_t room = *head_of(at) * UNIT - HEAD;
    if (size <= room)
        return at;
    void *other = near_malloc(context, size);
    if (other) {
        memcpy(other, at, room);
        near_free(context, at);
    }
    return other;
}

/* Puts ours before the interpreter's allocators, by its PyMem_GetAllocator and PyMem_SetAllocator. For good: what lies
 * in the region may be freed at any time. */
void sy_near(void (*get)(int, struct allocator *), void (*set)(int, struct allocator *))
{
    for (int domain = MEMORY; domain < DOMAINS; domain++) {
        get(domain, &usual[domain]);
        struct allocator ours = {&usual[domain], near_malloc, near_calloc, near_realloc, near_free};
        set(domain, &ours);
    }
}

/* Says whether this thread takes its memory from the region. */
void sy_take_near(int on)
{
    state.owner = on ? this_thread() : 0;
}

/* A worker begins on a page that nobody has touched. */
void sy_begin_near(void)
{
    if (usual[OBJECTS].malloc == NULL)
        return;
    state.used = (state.used + PAGE - 1) / PAGE * PAGE + HEAD;
    memset(state.free, 0, sizeof state.free);
    sy_take_near(1);
}
