/* Loaded before everything else: notes the names that libraries ask getenv(3) for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void note(const char *name) {
    int log = open(LOG, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (log < 0)
        return;
    char line[256];
    size_t length = strnlen(name, sizeof line - 1);
    memcpy(line, name, length);
    line[length] = '\n';
    if (write(log, line, length + 1) < 0)
        (void)0;
    close(log);
}

char *getenv(const char *name) {
    static char *(*next)(const char *);
    if (!next)
        next = (char *(*)(const char *))dlsym(RTLD_NEXT, "getenv");
    note(name);
    return next(name);
}

char *secure_getenv(const char *name) {
    static char *(*next)(const char *);
    if (!next)
        next = (char *(*)(const char *))dlsym(RTLD_NEXT, "secure_getenv");
    note(name);
    return next(name);
}
