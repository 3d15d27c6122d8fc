/* The first process of a sandbox that is made for one program: pid 1 of its pid namespace.
 *
 * A static program without a C library. It has a few pages of its own, where the general init (init.py) has a copy of a
 * whole interpreter; it speaks the same messages. It reads nothing that foreign code can write. A program that is
 * started after the waiting worker gets an interpreter of its own (later.py), by exec.
 *
 * The zygote's compiled part (steps.c) executes it with the descriptors below and, as arguments, the worker's pid and
 * the command by which later.py is started. Its file cannot be read, so that the kernel lets nobody look into it.
 *
 * gVisor starts it by itself, as ``box``: see begin_box().
 */
#include <stddef.h>
#include <stdint.h>

/* steps.c has the same numbers. */
enum { NOTHING, OUT, ERRORS, CONTROL, CHILDREN, STACK };
enum { MOST_MESSAGE = 192 * 1024, MOST_ID = 600, MOST_FDS = 8, MOST_WORDS = 24, PIECE = 64 * 1024, PROGRAMS = 4 };
enum { LAST_WORDS_MS = 1000, BROKEN_STATUS = 125 };
enum { POLLIN_ = 1, WNOHANG_ = 1, SOL_SOCKET_ = 1, SCM_RIGHTS_ = 1, PEEK = 2, DONTWAIT = 0x40, NOSIGNAL = 0x4000 };
enum { CTRUNC = 8, TRUNC = 0x20, CMSG_CLOEXEC = 0x40000000, EINTR_ = 4, ECHILD_ = 10, ESRCH_ = 3, EAGAIN_ = 11 };
enum { SIGINT = 2, SIGKILL = 9, SIGCHLD = 17, SIGXCPU = 24 };
enum { BLOCK_BLOCK, BLOCK_UNBLOCK, RUSAGE_CHILDREN_ = -1, FIRST_GIVEN = 16 };
enum { NONBLOCK_ = 0x800, CLOEXEC_ = 0x80000, RDWR_ = 2, AT_FDCWD_ = -100, SET_DUMPABLE = 4, CAPABILITIES_3 = 0x20080522 };
/* The descriptors of a box's worker beside NOTHING, OUT, ERRORS and CONTROL. inside.py has the same numbers. */
enum { CHANNEL = FIRST_GIVEN, OUTPUT, LAST_WORDS };

#ifdef SOURCE
/* The keeper compares it with this file: a program of another source is not used. */
__attribute__((used)) const char sy_source[] = "compiled:" SOURCE;
#endif

struct watched {
    int fd;
    short asked, got;
};

struct timeval64 {
    int64_t seconds, micros;
};

struct usage {
    struct timeval64 user, system;
    int64_t peak_kib, others[13];
};

struct vector {
    void *base;
    size_t size;
};

struct message {
    void *name;
    uint32_t named;
    struct vector *parts;
    size_t count;
    void *control;
    size_t controls;
    int flags;
};

/* As statfs(2) has it on the machines that we know. */
struct filesystem {
    int64_t type, block, blocks, free, available, files, files_free, id, most_name, fragment, others[5];
};

struct program {
    long pid;
    size_t named;
    char id[MOST_ID];
};

static long worker;
static struct program programs[PROGRAMS];
static char **command, **environment;
static char received[MOST_MESSAGE + 1];

/* Without the headers of a C library: a compiler for another machine may have none for a program without one. */
#if defined(__x86_64__)
enum { SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_rt_sigprocmask = 14, SYS_getpid = 39, SYS_sendto = 44,
       SYS_recvmsg = 47, SYS_clone = 56, SYS_execve = 59, SYS_wait4 = 61, SYS_kill = 62, SYS_getrusage = 98,
       SYS_capset = 126, SYS_statfs = 137, SYS_prctl = 157, SYS_exit_group = 231, SYS_openat = 257, SYS_ppoll = 271,
       SYS_signalfd4 = 289, SYS_dup3 = 292, SYS_pipe2 = 293 };

static long call(long number, long a, long b, long c, long d, long e)
{
    long got;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(got)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return got;
}
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");
#elif defined(__aarch64__)
enum { SYS_dup3 = 24, SYS_statfs = 43, SYS_openat = 56, SYS_close = 57, SYS_pipe2 = 59, SYS_read = 63, SYS_write = 64,
       SYS_ppoll = 73, SYS_signalfd4 = 74, SYS_capset = 91, SYS_exit_group = 94, SYS_kill = 129,
       SYS_rt_sigprocmask = 135, SYS_prctl = 167, SYS_getrusage = 165, SYS_getpid = 172, SYS_sendto = 206,
       SYS_recvmsg = 212, SYS_clone = 220, SYS_execve = 221, SYS_wait4 = 260 };

static long call(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
}
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n bl begin\n brk #0\n");
#else
#error "a machine that this program does not know"
#endif

/* The compiler may call these two by itself. */
__attribute__((used)) void *memcpy(void *to, const void *from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}

__attribute__((used)) void *memset(void *at, int value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((volatile char *)at)[i] = (char)value;
    return at;
}

static __attribute__((noreturn)) void leave(int status)
{
    for (;;)
        call(SYS_exit_group, status, 0, 0, 0, 0);
}

static size_t length(const char *text)
{
    size_t size = 0;
    while (text[size])
        size++;
    return size;
}

static int begins(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

/* Text that is being written; it never passes the end of ``text``. */
struct line {
    size_t size;
    char text[MOST_ID + 200];
};

static void add(struct line *line, const char *text, size_t size)
{
    if (size > sizeof line->text - line->size)
        leave(1);
    memcpy(line->text + line->size, text, size);
    line->size += size;
}

static void say(struct line *line, const char *text)
{
    add(line, text, length(text));
}

static void say_number(struct line *line, int64_t number, int digits)
{
    char text[24];
    int at = sizeof text;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number || (int)sizeof text - at < digits);
    add(line, text + at, sizeof text - (size_t)at);
}

static int read_number(const char *text, long *number)
{
    *number = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || *number > 100000000)
            return -1;
        *number = 10 * *number + (*text - '0');
    }
    return 0;
}

static void tell(struct line *line)
{
    long got;
    do
        got = call(SYS_sendto, CONTROL, (long)line->text, (long)line->size, NOSIGNAL, 0);
    while (got == -EINTR_);
}

/* As init.py tells them: the use of all children that ended so far. */
static void tell_use(struct line *line)
{
    struct usage used = {0};
    call(SYS_getrusage, RUSAGE_CHILDREN_, (long)&used, 0, 0, 0);
    int64_t micros = used.user.micros + used.system.micros;
    say(line, ",\"cpu\":");
    say_number(line, used.user.seconds + used.system.seconds + micros / 1000000, 1);
    say(line, ".");
    say_number(line, micros % 1000000, 6);
    say(line, ",\"rss\":");
    say_number(line, used.peak_kib * 1024, 1);
    say(line, "}");
    tell(line);
}

static void end_all_others(void);

static int running(void)
{
    for (int i = 0; i < PROGRAMS; i++)
        if (programs[i].pid)
            return 1;
    return 0;
}

static void worker_gone(int status)
{
    struct line line = {0};
    worker = 0;
    if (!running()) /* else another program ended it, whose own end is to be told */
        end_all_others();
    say(&line, "{\"idle_worker_gone\":");
    say_number(&line, status, 1);
    tell_use(&line);
}

static void program_gone(struct program *program, int status)
{
    struct line line = {0};
    program->pid = 0;
    end_all_others();
    say(&line, "{\"ended\":\"");
    add(&line, program->id, program->named);
    say(&line, "\",\"status\":");
    say_number(&line, status, 1);
    tell_use(&line);
    leave(0); /* it was made for one program, and for one more that collects what that left */
}

static void reaped(long pid, int status)
{
    if (pid == worker) {
        worker_gone(status);
        return;
    }
    for (int i = 0; i < PROGRAMS; i++)
        if (programs[i].pid == pid)
            program_gone(&programs[i], status);
}

static void end_all_others(void)
{
    while (call(SYS_kill, -1, SIGKILL, 0, 0, 0) != -ESRCH_) {
        int status = 0;
        long pid = call(SYS_wait4, -1, (long)&status, 0, 0, 0);
        if (pid == -ECHILD_)
            return;
        if (pid > 0)
            reaped(pid, status);
    }
}

static void reap(void)
{
    static char told[1024];
    call(SYS_read, CHILDREN, (long)told, sizeof told, 0, 0);
    for (;;) {
        int status = 0;
        long pid = call(SYS_wait4, -1, (long)&status, WNOHANG_, 0, 0);
        if (pid <= 0)
            return;
        reaped(pid, status);
    }
}

static void wait_for(struct watched *watched, size_t count, int64_t milliseconds)
{
    int64_t bound[2] = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    call(SYS_ppoll, (long)watched, (long)count, milliseconds < 0 ? 0 : (long)bound, 0, 8);
}

/* Ends the programs and stays. The worker is asked for its stack first, which its code cannot hinder. */
static void wind_up(void)
{
    struct watched child = {CHILDREN, POLLIN_, 0};
    if (worker) {
        call(SYS_kill, worker, SIGXCPU, 0, 0, 0);
        wait_for(&child, 1, LAST_WORDS_MS);
    }
    end_all_others();
}

/* The string behind ``{"start":"``, as it is written: it goes back the same. 0 where there is none. */
static size_t named(const char *text, size_t size)
{
    for (size_t i = 0; i < size && i < MOST_ID; i++) {
        if (text[i] == '\\')
            i++;
        else if (text[i] == '"')
            return i;
    }
    return 0;
}

/* Starts later.py with the message as its last arguments, in pieces as exec takes them. */
static long fork_later(size_t size, const int *fds, int count)
{
    static char *words[MOST_WORDS], pieces[MOST_MESSAGE + MOST_MESSAGE / PIECE + 1];
    uint64_t blocked = 1ull << (SIGCHLD - 1) | 1ull << (SIGINT - 1);
    int at = 0;
    long pid = call(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid)
        return pid;
    for (int i = 0; i < count; i++) /* ours are below, and those that came are closed by exec */
        if (fds[i] >= FIRST_GIVEN || call(SYS_dup3, fds[i], FIRST_GIVEN + i, 0, 0, 0) < 0)
            leave(BROKEN_STATUS);
    call(SYS_close, CONTROL, 0, 0, 0, 0);
    call(SYS_close, CHILDREN, 0, 0, 0, 0);
    while (command[at] && at < MOST_WORDS - 1) {
        words[at] = command[at];
        at++;
    }
    for (size_t from = 0, to = 0; from < size && at < MOST_WORDS - 1; from += PIECE) {
        size_t part = size - from < PIECE ? size - from : PIECE;
        words[at++] = pieces + to;
        memcpy(pieces + to, received + from, part);
        to += part + 1; /* behind it is a 0 */
    }
    words[at] = NULL;
    call(SYS_rt_sigprocmask, BLOCK_UNBLOCK, (long)&blocked, 0, 8, 0);
    call(SYS_execve, (long)words[0], (long)words, (long)environment, 0, 0);
    leave(BROKEN_STATUS);
}

static void start(size_t size, const int *fds, int count)
{
    static const char head[] = "{\"start\":\"";
    struct line line = {0};
    const char *id = received + sizeof head - 1;
    size_t known = named(id, size - (sizeof head - 1));
    struct program *program = NULL;
    for (int i = 0; i < PROGRAMS; i++)
        if (!programs[i].pid)
            program = &programs[i];
    long pid = known && program ? fork_later(size, fds, count) : -EAGAIN_;
    if (pid > 0) {
        program->pid = pid;
        program->named = known;
        memcpy(program->id, id, known);
        return;
    }
    say(&line, "{\"failed\":\"");
    add(&line, id, known);
    say(&line, "\",\"why\":\"it could not be forked: ");
    say_number(&line, -pid, 1);
    say(&line, "\"}");
    tell(&line);
}

/* Takes the keeper's next message and its descriptors. Returns its size, 0 at the end, or minus an error. */
static long take(int fds[MOST_FDS], int *count, int flags)
{
    union {
        struct {
            size_t size;
            int level, type;
            int fds[MOST_FDS];
        } head;
        char room[sizeof(size_t) + 2 * sizeof(int) + MOST_FDS * sizeof(int)];
    } beside = {0};
    struct vector part = {received, MOST_MESSAGE};
    struct message message = {NULL, 0, &part, 1, &beside, sizeof beside, 0};
    long size = call(SYS_recvmsg, CONTROL, (long)&message, CMSG_CLOEXEC | flags, 0, 0);
    *count = 0;
    if (size <= 0)
        return size;
    if (message.flags & (TRUNC | CTRUNC))
        return 0;
    received[size] = 0;
    if (message.controls >= sizeof(size_t) + 2 * sizeof(int) && beside.head.level == SOL_SOCKET_
        && beside.head.type == SCM_RIGHTS_)
        *count = (int)((beside.head.size - sizeof(size_t) - 2 * sizeof(int)) / sizeof(int));
    for (int i = 0; i < *count && i < MOST_FDS; i++)
        fds[i] = beside.head.fds[i];
    return size;
}

/* Tells how full the disk of a box is, which only gVisor's kernel knows. */
static void weigh(void)
{
    struct line line = {0};
    struct filesystem told = {0};
    call(SYS_statfs, (long)"/workspace", (long)&told, 0, 0, 0);
    say(&line, "{\"weighed\":");
    say_number(&line, (told.blocks - told.free) * told.fragment, 1);
    say(&line, "}");
    tell(&line);
}

/* 0 when the keeper let go. */
static int hear(void)
{
    int fds[MOST_FDS], count;
    long size = take(fds, &count, DONTWAIT);
    if (size == -EAGAIN_ || size == -EINTR_)
        return 1;
    if (size <= 0)
        return 0;
    if (begins(received, "{\"start\":\""))
        start((size_t)size, fds, count);
    else if (begins(received, "{\"wind_up\":"))
        wind_up();
    else if (begins(received, "{\"weigh\":"))
        weigh();
    for (int i = 0; i < count; i++)
        call(SYS_close, fds[i], 0, 0, 0, 0);
    return 1;
}

static void must(long got)
{
    if (got < 0)
        leave(1);
}

static void place(long fd, int at)
{
    must(fd);
    if (fd == at)
        return;
    must(call(SYS_dup3, fd, at, 0, 0, 0));
    must(call(SYS_close, fd, 0, 0, 0, 0));
}

/* Keeps what starting and ending programs of another user takes: CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP. */
static void hold_few(void)
{
    uint32_t head[2] = {CAPABILITIES_3, 0}, few = 1u << 5 | 1u << 6 | 1u << 7 | 1u << 8;
    uint32_t held[6] = {few, few, 0, 0, 0, 0};
    must(call(SYS_capset, (long)head, (long)held, 0, 0, 0));
}

/* Begins as the first process of a gVisor sandbox, with the keeper's socket as input and its pipe as output.
 *
 * The worker, started by ``words``, gets our rights, builds the inside and gives them up (inside.py). It is another
 * process from the start, so that no fork copies an interpreter.
 */
static void begin_box(char **words)
{
    uint64_t blocked = 1ull << (SIGCHLD - 1) | 1ull << (SIGINT - 1);
    int fds[MOST_FDS], count, stack[2];
    long got;
    must(call(SYS_prctl, SET_DUMPABLE, 0, 0, 0, 0));
    must(call(SYS_rt_sigprocmask, BLOCK_BLOCK, (long)&blocked, 0, 8, 0));
    must(call(SYS_dup3, 0, CONTROL, 0, 0, 0));
    blocked = 1ull << (SIGCHLD - 1);
    place(call(SYS_signalfd4, -1, (long)&blocked, 8, CLOEXEC_ | NONBLOCK_, 0), CHILDREN);
    must(call(SYS_pipe2, (long)stack, NONBLOCK_, 0, 0, 0));
    place(stack[0], STACK);
    place(stack[1], LAST_WORDS);
    place(call(SYS_openat, AT_FDCWD_, (long)"/dev/null", RDWR_, 0, 0), NOTHING);
    do
        got = take(fds, &count, 0);
    while (got == -EINTR_);
    if (got <= 0 || count != 2)
        leave(1);
    place(fds[0], CHANNEL);
    place(fds[1], OUTPUT);
    worker = call(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    must(worker);
    if (!worker) {
        call(SYS_close, CHILDREN, 0, 0, 0, 0);
        call(SYS_close, STACK, 0, 0, 0, 0);
        call(SYS_execve, (long)words[0], (long)words, (long)environment, 0, 0);
        leave(BROKEN_STATUS);
    }
    for (int fd = CHANNEL; fd <= LAST_WORDS; fd++)
        must(call(SYS_close, fd, 0, 0, 0, 0));
    must(call(SYS_dup3, NOTHING, OUT, 0, 0, 0));
    must(call(SYS_dup3, NOTHING, ERRORS, 0, 0, 0));
    hold_few();
}

/* Of ``box``, how many words the worker's command has, that command, and the later one. */
static void read_box(char **words, long count)
{
    static char *first[MOST_WORDS];
    long size;
    if (count < 4 || read_number(words[2], &size) < 0 || size >= MOST_WORDS || size > count - 4)
        leave(1);
    for (long i = 0; i < size; i++)
        first[i] = words[3 + i];
    command = words + 3 + size;
    begin_box(first);
}

__attribute__((used, noreturn)) void begin(long *stack)
{
    char **words = (char **)(stack + 1);
    struct watched watched[2] = {{CONTROL, POLLIN_, 0}, {CHILDREN, POLLIN_, 0}};
    environment = words + *stack + 1;
    if (call(SYS_getpid, 0, 0, 0, 0, 0) != 1) /* elsewhere, kill(-1) would end strangers */
        leave(1);
    if (*stack >= 2 && begins(words[1], "box"))
        read_box(words, *stack);
    else if (*stack < 3 || read_number(words[1], &worker) < 0)
        leave(1);
    else
        command = words + 2;
    for (;;) {
        wait_for(watched, 2, -1);
        if (watched[0].got && !hear())
            leave(0);
        if (watched[1].got)
            reap();
        watched[0].got = watched[1].got = 0;
    }
}
