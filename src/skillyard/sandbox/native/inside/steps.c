/* The serve loop of a zygote, and the steps that make its clone a sandbox, without the interpreter.
 *
 * A zygote that runs no Python touches few pages, and each page that it or its clone touches is copied. The steps come
 * as a table from the keeper (grounds/namespaces/table.py); steps.py performs the same table where this file was not
 * built. Loaded by ctypes as a PyDLL: the interpreter lock stays held, and there is one thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ORDER = 192 * 1024, MOST_FDS = 16, MOST_ARGS = 6, SLOTS = 8, NONE = 255, ANY = 255 };
enum { SYSCALL, FORK_ONCE, GROW_STACK, DROP_BOUNDING, LAST };     /* form.py: the same numbers */
enum { NUMBER, BYTES, SLOT, GIVEN, FILTER, PATCHED };
enum { ENDED, INIT, FAILED = -1 };
enum { MOST_WORDS = 16, OURS = 6, HIGH = 64, LATER_CLOSED = 4 };
enum { SLACK = 1 << 16, BROKEN_STATUS = 125, WORKERS = 5, CHANNEL = 3 }; /* walls.py, init.py */
enum { AHEAD = 0x40000000 | 0x08000000, QUIET_MS = 5 }; /* network and ipc: a clone without these flags inherits them */
enum { MOST_WAIT_MS = 10000 }; /* of a worker that is done: its keeper answers within milliseconds */

#ifdef SOURCE
/* The keeper compares it with this file: a library of another source is not used. */
const char sy_source[] = "compiled:" SOURCE;
#endif

struct argument {
    uint8_t kind, slot;
    uint16_t length;
    int64_t number;
    uint8_t *bytes;
};

struct step {
    uint8_t op, lenient, store, skip, count, named;
    uint16_t call;
    const uint8_t *name;
    struct argument argument[MOST_ARGS];
};

struct reader {
    uint8_t *at, *end;
};

struct filter {
    unsigned short length;
    const void *code;
};

/* How a worker goes on: functions of the interpreter, and the callable that serves its request and then returns. */
struct sy_python {
    void (*after_fork)(void);
    void *(*call)(void *);
    void *worker;
};

struct sy_made {
    int control, channel, output, stack, last_words, nothing, children;
    long worker;
};

static int take(struct reader *r, void *to, size_t size)
{
    if ((size_t)(r->end - r->at) < size)
        return -1;
    memcpy(to, r->at, size);
    r->at += size;
    return 0;
}

static uint8_t *piece(struct reader *r, size_t size)
{
    uint8_t *at = r->at;
    if ((size_t)(r->end - r->at) < size)
        return NULL;
    r->at += size;
    return at;
}

static int next_argument(struct reader *r, struct argument *a)
{
    if (take(r, &a->kind, 1) < 0)
        return -1;
    switch (a->kind) {
    case NUMBER:
        return take(r, &a->number, sizeof a->number);
    case SLOT:
        return take(r, &a->slot, 1) < 0 || a->slot >= SLOTS ? -1 : 0;
    case GIVEN:
        return take(r, &a->slot, 1) < 0 || a->slot >= MOST_FDS ? -1 : 0;
    case FILTER:
        return 0;
    case PATCHED:
        if (take(r, &a->slot, 1) < 0 || a->slot >= SLOTS)
            return -1; /* fall through */
    case BYTES:
        if (take(r, &a->length, sizeof a->length) < 0 || (a->bytes = piece(r, a->length)) == NULL)
            return -1;
        return a->kind == PATCHED && a->length < sizeof(int32_t) ? -1 : 0;
    default:
        return -1;
    }
}

/* 1: a step; 0: the mark of the end, behind which nothing comes; -1: it cannot be read. A table that breaks off between
 * two steps lacks the mark: no sandbox may run without its last walls. */
static int next_step(struct reader *r, struct step *s)
{
    if (take(r, &s->op, 1) < 0 || take(r, &s->lenient, 1) < 0 || take(r, &s->store, 1) < 0 || take(r, &s->skip, 1) < 0
        || take(r, &s->call, sizeof s->call) < 0 || take(r, &s->count, 1) < 0 || take(r, &s->named, 1) < 0
        || (s->name = piece(r, s->named)) == NULL)
        return -1;
    if (s->op > LAST || (s->store != NONE && s->store >= SLOTS) || s->count > MOST_ARGS)
        return -1;
    if (s->op == LAST)
        return s->count == 0 && r->at == r->end ? 0 : -1;
    if ((s->op == GROW_STACK || s->op == DROP_BOUNDING) && s->count < 1)
        return -1;
    for (int i = 0; i < s->count; i++)
        if (next_argument(r, &s->argument[i]) < 0)
            return -1;
    return 1;
}

/* Returns the number of steps but for the last mark, -1 for a table that cannot be read. */
int sy_check(uint8_t *table, size_t size)
{
    struct reader r = {table, table + size};
    struct step s;
    int got, count = 0;
    while ((got = next_step(&r, &s)) == 1)
        count++;
    return got < 0 ? -1 : count;
}

static long fork_once(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    return pid < 0 ? -1 : waitpid(pid, NULL, 0);
}

static long drop_bounding(long count)
{
    for (long capability = 0; capability < count; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
            return -1;
    return 0;
}

/* The limit of a stack counts its mapping, which grows down to any touched address in it. */
static long grow_stack(long size)
{
    unsigned long top = getauxval(AT_EXECFN);
    if (top)
        *(volatile char *)(top - (unsigned long)size + SLACK) = 0;
    return 0;
}

static long perform(struct step *s, const long *slots, const int *given, int count, const struct filter *filter)
{
    long value[MOST_ARGS] = {0};
    for (int i = 0; i < s->count; i++) {
        struct argument *a = &s->argument[i];
        if (a->kind == NUMBER)
            value[i] = a->number;
        else if (a->kind == SLOT)
            value[i] = slots[a->slot];
        else if (a->kind == GIVEN)
            value[i] = a->slot < count ? given[a->slot] : -1;
        else if (a->kind == FILTER)
            value[i] = (long)filter;
        else
            value[i] = (long)a->bytes;
        if (a->kind == PATCHED) {
            int32_t fd = (int32_t)slots[a->slot];
            memcpy(a->bytes + a->length - sizeof fd, &fd, sizeof fd);
        }
    }
    if (s->op == FORK_ONCE)
        return fork_once();
    if (s->op == GROW_STACK)
        return grow_stack(value[0]);
    if (s->op == DROP_BOUNDING)
        return drop_bounding(value[0]);
    return syscall(s->call, value[0], value[1], value[2], value[3], value[4], value[5]);
}

/* Performs a table. Returns 0; -1 with errno and the failed step in ``s``, whose name is NULL when it cannot be read. */
int sy_run(uint8_t *table, size_t size, const int *given, int count, const uint8_t *code, size_t code_size,
           struct step *s)
{
    struct reader r = {table, table + size};
    struct filter filter = {(unsigned short)(code_size / 8), code};
    long slots[SLOTS];
    int skip = 0;
    for (int i = 0; i < SLOTS; i++)
        slots[i] = -1;
    s->name = NULL;
    errno = EBADMSG;
    if (sy_check(table, size) < 0)
        return -1;
    while (next_step(&r, s) == 1) {
        if (skip > 0) {
            skip--;
            continue;
        }
        errno = 0;
        long got = perform(s, slots, given, count, &filter);
        if (got < 0 && s->lenient != ANY && (s->lenient == 0 || s->lenient != errno))
            return -1;
        if (s->store != NONE)
            slots[s->store] = got < 0 ? -1 : got;
        if (got >= 0)
            skip = s->skip;
    }
    return 0;
}

static void tell(int fd, const char *kind, const uint8_t *name, int named, int error)
{
    char text[600], plain[256];
    for (int i = 0; i < named; i++)
        plain[i] = name[i] < ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\' ? '?' : (char)name[i];
    int size = snprintf(text, sizeof text, "{\"%s\":\"OSError: %.*s: %s\"}", kind, named, plain, strerror(error));
    if (size > 0 && size < (int)sizeof text)
        (void)!send(fd, text, (size_t)size, MSG_NOSIGNAL);
}

static int receive(int sock, uint8_t *order, ssize_t *size, int *fds, int *count)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } beside;
    struct iovec vector = {order, MOST_ORDER};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &beside,
                             .msg_controllen = sizeof beside};
    do
        *size = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    while (*size < 0 && errno == EINTR);
    *count = 0;
    if (*size <= 0)
        return (int)*size;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            int more = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            for (int i = 0; i < more && *count < MOST_FDS; i++)
                memcpy(&fds[(*count)++], CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof(int));
        }
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        while (*count > 0)
            close(fds[--*count]);
        errno = EMSGSIZE;
        return -1;
    }
    return 1;
}

/* As zygote.tell_cloned: the pid alone where no descriptor can be sent. ``ready``: its first process is first.c. */
static int tell_cloned(int sock, long pid, int pidfd, int ready)
{
    char text[60];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } beside;
    int size = snprintf(text, sizeof text, "{\"pid\":%ld%s}", pid, ready ? ",\"ready\":true" : "");
    struct iovec vector = {text, (size_t)size};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &beside,
                             .msg_controllen = sizeof beside};
    memset(&beside, 0, sizeof beside);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &pidfd, sizeof pidfd);
    if (sendmsg(sock, &message, MSG_NOSIGNAL) >= 0)
        return 0;
    if (errno != ETOOMANYREFS)
        return -1;
    return send(sock, text, (size_t)size, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

struct clone_order {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

enum { SHARED = 0x100, WAITS = 0x4000, PIDFD = 0x1000, PARENT = 0x8000 };
static const uint64_t INTO_CGROUP = 0x200000000ull;

/* clone3(2) for a child that begins in ``begin``, on a stack of its own. */
#if defined(__x86_64__)
static long clone_into(struct clone_order *order, void (*begin)(void))
{
    long got;
    register void (*kept)(void) __asm__("r12") = begin;
    __asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tcall *%%r12\n\thlt\n1:"
                     : "=a"(got)
                     : "0"((long)SYS_clone3), "D"(order), "S"(sizeof *order), "r"(kept)
                     : "rcx", "r11", "memory", "cc");
    return got;
}
#elif defined(__aarch64__)
static long clone_into(struct clone_order *order, void (*begin)(void))
{
    register long number __asm__("x8") = SYS_clone3;
    register long got __asm__("x0") = (long)order;
    register long size __asm__("x1") = sizeof *order;
    register void (*kept)(void) __asm__("x19") = begin;
    __asm__ volatile("svc #0\n\tcbnz x0, 1f\n\tmov x29, #0\n\tmov x30, #0\n\tblr x19\n\tbrk #0\n1:"
                     : "+r"(got)
                     : "r"(number), "r"(size), "r"(kept)
                     : "memory", "cc");
    return got;
}
#else
#error "a machine that this library does not know"
#endif

/* One order while it is carried out. A clone that shares our memory finds it here. */
static struct {
    int sock;
    uint8_t *order;
    size_t size;
    const int *fds;
    int count;
    const uint8_t *code;
    size_t code_size;
    struct sy_made *made;
    const struct sy_python *python;
    char *const *first, *const *environment;
    int held;               /* closed when first.c runs */
    volatile int executing; /* set while a clone that shares our memory is about to leave it for first.c */
} now;
static jmp_buf serving;
/* A clone that shares our memory has its stack in here, at a multiple of its size. */
enum { STACK_SIZE = 64 * 1024 };
static char room[2 * STACK_SIZE];

static __attribute__((noreturn)) void break_off(const uint8_t *name, int named)
{
    tell(now.fds[0], "broken", name, named, errno);
    _exit(1);
}

/* Builds the walls around this process. Returns when they stand. */
static void build(void)
{
    struct step failed;
    close(now.sock);
    if (now.count < 3)
        _exit(1);
    if (sy_run(now.order, now.size, now.fds, now.count, now.code, now.code_size, &failed) == 0)
        return;
    if (failed.name)
        break_off(failed.name, failed.named);
    break_off((const uint8_t *)"its order", 9);
}

/* Opens what init and worker have. Returns -1 with errno. */
static int open_own(struct sy_made *made)
{
    sigset_t blocked, children;
    int pipes[2];
    made->control = now.fds[0];
    made->channel = now.fds[1];
    made->output = now.fds[2];
    if ((made->nothing = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0)
        return -1;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    blocked = children;
    sigaddset(&blocked, SIGINT); /* init.py: the same, and unblocked in be_child */
    if (sigprocmask(SIG_BLOCK, &blocked, NULL) < 0
        || (made->children = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC)) < 0
        || pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    made->stack = pipes[0];
    made->last_words = pipes[1];
    return 0;
}

static const uint8_t late[] = "its first process";

/* Makes ``fds`` the only descriptors, from 0 on. */
static int keep_only(const int *fds, int count)
{
    int high[OURS];
    for (int i = 0; i < count; i++)
        if ((high[i] = fcntl(fds[i], F_DUPFD, HIGH)) < 0)
            return -1;
    for (int i = 0; i < count; i++)
        if (dup2(high[i], i) < 0)
            return -1;
    return 0;
}

/* Foreign code must not meet a pid 1 whose memory is the zygote's. */
static int await_first(void)
{
    char none;
    while (read(WORKERS, &none, 1) < 0)
        if (errno != EINTR)
            _exit(1);
    close(WORKERS);
    return 1;
}

/* As be_child in init.py. One that ``waits`` keeps what await_first reads. */
static int be_child(const struct sy_made *made, int waits)
{
    const int fds[WORKERS + 1] = {made->nothing, made->output, made->output, made->channel, made->last_words, now.held};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGINT);
    if (keep_only(fds, WORKERS + waits) < 0 || syscall(SYS_close_range, WORKERS + waits, ~0u, 0) < 0 || setsid() < 0
        || sigprocmask(SIG_UNBLOCK, &blocked, NULL) < 0)
        return -1;
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* The worker, on the stack of the interpreter: its request in Python, which says DONE, and then as serve_guest in
 * init.py. Each page that a way back through ctypes touches would be copied. One that ``waits`` has a sandbox that the
 * keeper ends at that word: the kernel wakes the keeper on this processor, where it would run behind our own exit. */
static __attribute__((noreturn)) void become_worker(int waits)
{
    static const char broken[] = "the program could not be started\n";
    now.python->after_fork();
    if (be_child(now.made, waits) == 0 && (!waits || await_first()) && now.python->call(now.python->worker)) {
        /* In each copy that a child holds too. A program that closed the channel, or has another in its place, is not
         * heard. A signal that is handled ends the wait, as the one that asks for the last stack. */
        if (shutdown(CHANNEL, SHUT_WR) == 0 && waits)
            poll(NULL, 0, MOST_WAIT_MS);
        _exit(0);
    }
    (void)!write(STDERR_FILENO, broken, sizeof broken - 1);
    _exit(BROKEN_STATUS);
}

/* Forks the worker and waits until init has something to do. Never returns in an init whose keeper let go. */
static int become_init(void)
{
    static const char ready[] = "{\"ready\":true}";
    struct sy_made *made = now.made;
    build();
    if (open_own(made) < 0 || (made->worker = fork()) < 0)
        break_off(late, sizeof late - 1);
    if (made->worker == 0)
        become_worker(0);
    close(made->last_words);
    close(made->channel);
    close(made->output);
    if (write(made->control, ready, sizeof ready - 1) < 0)
        _exit(1);
    struct pollfd watched[2] = {{made->control, POLLIN, 0}, {made->children, POLLIN, 0}};
    while (poll(watched, 2, -1) < 0)
        if (errno != EINTR)
            _exit(1);
    char first;
    if (!watched[1].revents && recv(made->control, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        _exit(0);
    return INIT;
}

/* In memory that is the zygote's, which stands still until the exec: forks once, and that copy is the worker. Then it
 * becomes first.c, which has a few pages of its own. */
static __attribute__((noreturn)) void become_first(void)
{
    struct sy_made *made = now.made;
    static char *words[MOST_WORDS], pid[24];
    int held[2], at = 2;
    build();
    if (open_own(made) < 0 || pipe2(held, O_CLOEXEC) < 0 || (made->worker = fork()) < 0)
        break_off(late, sizeof late - 1);
    if (made->worker == 0) {
        now.held = held[0];
        longjmp(serving, 1);
    }
    snprintf(pid, sizeof pid, "%ld", made->worker);
    words[0] = now.first[0];
    words[1] = pid;
    for (int i = 1; now.first[i] && at < MOST_WORDS - 1; i++)
        words[at++] = now.first[i];
    words[at] = NULL;
    if (keep_only((const int[OURS]){made->nothing, made->nothing, made->nothing, made->control, made->children,
                                    made->stack}, OURS) == 0
        && syscall(SYS_close_range, OURS, ~0u, LATER_CLOSED) == 0) {
        now.executing = 1; /* it goes back from there only with an error */
        execve(words[0], words, now.environment);
        now.executing = 0;
    }
    break_off(late, sizeof late - 1);
}

/* Enters the namespaces of the next clone while nobody waits for one: most of its time is theirs. Each is for one clone:
 * the one after that makes its own, or inherits others that this made. Returns the flags that the clone is spared. */
static unsigned long go_ahead(int sock, unsigned long spaces)
{
    struct pollfd watched = {sock, POLLIN, 0};
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd;
    if (poll(&watched, 1, QUIET_MS) != 0 || syscall(SYS_unshare, spaces & AHEAD) < 0)
        return 0;
    /* The table does this too, and finds it done. */
    if ((fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0) {
        (void)ioctl(fd, SIOCSIFFLAGS, &up);
        close(fd);
    }
    return spaces & AHEAD;
}

/* Serves clones on ``sock``. ``spaces`` are the flags of the namespaces; ``first`` is the command of first.c, without
 * the worker's pid. The interpreter is ready for a fork.
 * ENDED: the keeper let go. INIT: this process is one, as ``made`` says. FAILED: errno says why. Workers stay here. */
int sy_serve(int sock, unsigned long spaces, const uint8_t *code, size_t code_size, char *const *first,
             char *const *environment, const struct sy_python *python, struct sy_made *made)
{
    static uint8_t order[MOST_ORDER];
    static const uint8_t clone[] = "clone3";
    static int fds[MOST_FDS];
    const uintptr_t own_stack = ((uintptr_t)room + STACK_SIZE - 1) / STACK_SIZE * STACK_SIZE;
    int count, got;
    ssize_t size;
    if (setjmp(serving))
        become_worker(1);
    now.python = python;
    for (;;) {
        unsigned long ahead = go_ahead(sock, spaces);
        if ((got = receive(sock, order, &size, fds, &count)) <= 0)
            break;
        int shares = order[0] == 'f' || order[0] == 'F';
        int pidfd = -1, into = (order[0] == '+' || order[0] == 'F') && count ? fds[count - 1] : -1;
        struct clone_order a = {.flags = (spaces & ~ahead) | PARENT | PIDFD, .pidfd = (uintptr_t)&pidfd};
        now.sock = sock;
        now.order = order + 1;
        now.size = (size_t)size - 1;
        now.fds = fds;
        now.count = count;
        now.code = code;
        now.code_size = code_size;
        now.made = made;
        now.first = first;
        now.environment = environment;
        now.executing = 0;
        if (into >= 0) {
            a.flags |= INTO_CGROUP;
            a.cgroup = (uint64_t)into;
        }
        if (shares) {
            a.flags |= SHARED | WAITS;
            a.stack = own_stack;
            a.stack_size = STACK_SIZE;
        }
        /* A clone that shared our memory took it away, and without it nobody has the right to its own /proc/self. */
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        long pid = shares ? clone_into(&a, become_first) : syscall(SYS_clone3, &a, sizeof a);
        if (pid == 0)
            return become_init();
        if (pid < 0)
            tell(sock, "failed", clone, sizeof clone - 1, shares ? (int)-pid : errno);
        else if (tell_cloned(sock, pid, pidfd, shares && now.executing) < 0)
            return FAILED;
        if (pidfd >= 0)
            close(pidfd);
        for (int i = 0; i < count; i++)
            close(fds[i]);
        memset(order, 0, (size_t)size); /* the next clone reads its own order alone */
        if (shares) /* and what the last one left on its stack is dropped, which touches no page */
            madvise((void *)own_stack, STACK_SIZE, MADV_DONTNEED);
    }
    return got < 0 ? FAILED : ENDED;
}
