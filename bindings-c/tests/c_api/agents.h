/* The agents of a C test program, found by their command line, to be stopped and killed. */
#ifndef AGENTS_H
#define AGENTS_H

#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGENTS_MAX 64

static size_t slurp(const char *process, const char *name, char *text, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/%s", process, name);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    text[length] = 0;
    return length;
}

/* Whether this process is an agent of the node with its socket below this program's own directory. */
static int is_agent(const char *process, const char *node)
{
    char text[4096];
    size_t length = slurp(process, "cmdline", text, sizeof text);
    const char *own = getenv("MUSTER_DIR");
    int is_below = 0, is_of_node = 0;
    for (char *word = text; word < text + length; word += strlen(word) + 1) {
        const char *last = strrchr(word, ':');
        is_below |= own && strncmp(word, own, strlen(own)) == 0;
        is_of_node |= last && strcmp(last + 1, node) == 0;
    }
    return is_below && is_of_node && strcmp(text, "musterd") == 0;
}

static pid_t parent_of(const char *process)
{
    char text[1024];
    int parent = 0;
    slurp(process, "stat", text, sizeof text);
    char *after_name = strrchr(text, ')');
    return after_name && sscanf(after_name, ") %*c %d", &parent) == 1 ? parent : 0;
}

/* The processes of a node's agent; with `worker` only its worker, which is a child of another one of them. */
static int find_agent(const char *node, pid_t *found, int most, int worker)
{
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    pid_t parents[AGENTS_MAX], all[AGENTS_MAX];
    int count = 0, chosen = 0;
    CHECK(processes != NULL);
    while (processes && count < AGENTS_MAX && (entry = readdir(processes)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_agent(entry->d_name, node)) {
            parents[count] = parent_of(entry->d_name);
            all[count++] = (pid_t)atoi(entry->d_name);
        }
    if (processes)
        closedir(processes);
    for (int i = 0; i < count && chosen < most; i++) {
        int is_child = 0;
        for (int other = 0; other < count; other++)
            is_child |= parents[i] == all[other];
        if (!worker || is_child)
            found[chosen++] = all[i];
    }
    return chosen;
}

static int signal_agent(const char *node, int number)
{
    pid_t found[AGENTS_MAX];
    int count = find_agent(node, found, AGENTS_MAX, 0);
    for (int i = 0; i < count; i++)
        kill(found[i], number);
    return count;
}

/* Repeats, since the supervisor forks a new worker as long as it is alive itself. */
static void kill_agent(const char *node)
{
    while (signal_agent(node, SIGKILL) > 0)
        usleep(1000);
}

#endif
