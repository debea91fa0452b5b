/* A C program with a real agent: attributes are written, read, watched and refused. Exit code 0 if
 * all checks pass. */
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_S 30
#define LARGEST 65536

static char large[LARGEST + 1], back[LARGEST + 1];

/* Polls the descriptor for a change of this key. */
static int await_change(muster_ctx_t *context, const char *key, muster_event_t *event)
{
    struct pollfd news = {muster_get_fd(context), POLLIN, 0};
    time_t give_up = time(NULL) + DEADLINE_S;
    while (time(NULL) < give_up) {
        while (muster_next_event(context, event) > 0)
            if (event->kind == MUSTER_EVENT_ATTRIBUTE)
                return event->key_hash == muster_key_hash(key);
        if (poll(&news, 1, 1000) < 0 && errno != EINTR)
            return 0;
    }
    return 0;
}

static void check_values(muster_ctx_t *context, uint32_t node)
{
    char text[4] = "keep";
    CHECK(muster_attribute_get(context, node, "color", text, 4) == MUSTER_ERR_NO_SUCH_KEY);
    CHECK(memcmp(text, "keep", 4) == 0);
    CHECK(muster_publish(context, "color", "yellow", 6) == MUSTER_OK);
    CHECK(muster_attribute_get(context, node, "color", back, sizeof back) == 6);
    CHECK(memcmp(back, "yellow", 6) == 0);
    /* As snprintf: the whole length is returned, the value is truncated to fit. */
    CHECK(muster_attribute_get(context, node, "color", text, 2) == 6);
    CHECK(memcmp(text, "yeep", 4) == 0);
    CHECK(muster_attribute_get(context, node, "color", NULL, 0) == 6);

    CHECK(muster_publish(context, "empty", NULL, 0) == MUSTER_OK);
    CHECK(muster_attribute_get(context, node, "empty", back, sizeof back) == 0);

    for (size_t at = 0; at < LARGEST; at++)
        large[at] = (char)(at * 31 % 251);
    CHECK(muster_publish(context, "large", large, LARGEST) == MUSTER_OK);
    CHECK(muster_attribute_get(context, node, "large", back, sizeof back) == LARGEST);
    CHECK(memcmp(back, large, LARGEST) == 0);

    CHECK(muster_withdraw(context, "color") == 1);
    CHECK(muster_withdraw(context, "color") == 0);
    CHECK(muster_attribute_get(context, node, "color", NULL, 0) == MUSTER_ERR_NO_SUCH_KEY);
}

/* Each call beyond a limit fails with an error that names the limit, and changes nothing. */
static void check_limits(muster_ctx_t *context, uint32_t node)
{
    char longest[257];
    memset(longest, 'k', sizeof longest);
    longest[256] = 0;
    CHECK(muster_publish(context, longest, "v", 1) == MUSTER_ERR_LIMIT);
    CHECK(strstr(muster_last_error_message(), "255") != NULL);
    longest[255] = 0;
    CHECK(muster_publish(context, longest, "v", 1) == MUSTER_OK);
    CHECK(muster_publish(context, "", "v", 1) == MUSTER_ERR_LIMIT);
    CHECK(muster_publish(context, "large", large, LARGEST + 1) == MUSTER_ERR_LIMIT);
    CHECK(muster_publish(context, "large", large, SIZE_MAX) == MUSTER_ERR_LIMIT);
    CHECK(strstr(muster_last_error_message(), "65536") != NULL);
    CHECK(muster_attribute_get(context, node, "large", NULL, 0) == LARGEST);
    CHECK(muster_attribute_get(context, 1000, "large", NULL, 0) == MUSTER_ERR_NO_SUCH_NODE);

    int status = MUSTER_OK, written = 0;
    char key[16];
    while (status == MUSTER_OK && written < 100) {
        snprintf(key, sizeof key, "fill%d", written);
        status = muster_publish(context, key, large, LARGEST);
        written += status == MUSTER_OK;
    }
    CHECK(status == MUSTER_ERR_LIMIT && written == 14);
    CHECK(strstr(muster_last_error_message(), "1 MiB") != NULL);
    CHECK(muster_withdraw(context, "fill0") == 1);
    CHECK(muster_publish(context, "fill0", large, 10) == MUSTER_OK);
}

static void check_watch(muster_ctx_t *context, uint32_t node)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    char line[256] = "";
    CHECK(muster_publish(context, "other", "1", 1) == MUSTER_OK);
    CHECK(muster_watch(context, "load") == MUSTER_OK);
    CHECK(muster_watch(context, "load") == MUSTER_OK);
    CHECK(muster_publish(context, "other", "2", 1) == MUSTER_OK);
    CHECK(muster_publish(context, "load", "9", 1) == MUSTER_OK);
    CHECK(await_change(context, "load", &event));
    CHECK(event.node == node && event.rank == MUSTER_NONE);
    CHECK(muster_event_describe(context, &event, line, sizeof line) > 0);
    CHECK(strstr(line, "node here changed an attribute") == line);
    CHECK(muster_withdraw(context, "load") == 1);
    CHECK(await_change(context, "load", &event));

    /* No longer watched: the next reported change is of another key. */
    CHECK(muster_watch(context, "last") == MUSTER_OK);
    CHECK(muster_unwatch(context, "load") == 1);
    CHECK(muster_unwatch(context, "load") == 0);
    CHECK(muster_publish(context, "load", "10", 2) == MUSTER_OK);
    CHECK(muster_publish(context, "last", "1", 1) == MUSTER_OK);
    CHECK(await_change(context, "last", &event));
    CHECK(muster_unwatch(context, "last") == 1);
    CHECK(muster_withdraw(context, "load") == 1 && muster_withdraw(context, "last") == 1);
    CHECK(muster_attribute_get(context, node, "load", NULL, 0) == MUSTER_ERR_NO_SUCH_KEY);
}

/* As many keys as one answer of the agent holds, and more. */
static void check_keys(muster_ctx_t *context, uint32_t node)
{
    enum { MANY = 300, LENGTH = 250, ALL = MANY * (LENGTH + 1) };
    static char list[ALL + 64], key[LENGTH + 1];
    int before = muster_attribute_keys(context, node, list, sizeof list), expected = 0, found = 0;
    CHECK(before >= 0 && before < (int)sizeof list);
    for (const char *each = list; each < list + before; each += strlen(each) + 1)
        CHECK(muster_attribute_get(context, node, each, NULL, 0) >= 0);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "%0*d", LENGTH, i);
        CHECK(muster_publish(context, key, "v", 1) == MUSTER_OK);
    }
    int length = muster_attribute_keys(context, node, list, sizeof list);
    CHECK(length == before + ALL);
    for (const char *each = list; each < list + ALL; each += strlen(each) + 1, found++)
        expected += atoi(each) == found && strlen(each) == LENGTH;
    CHECK(found == MANY && expected == MANY);
    /* Only whole keys, and the length of all. */
    memset(list, '?', sizeof list);
    CHECK(muster_attribute_keys(context, node, list, 2 * LENGTH) == length);
    CHECK(strlen(list) == LENGTH && list[LENGTH + 1] == '?');
    CHECK(muster_attribute_keys(context, node, NULL, 0) == length);
    CHECK(muster_attribute_keys(context, 1000, list, sizeof list) == MUSTER_ERR_NO_SUCH_NODE);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "%0*d", LENGTH, i);
        CHECK(muster_withdraw(context, key) == 1);
    }
    CHECK(muster_attribute_keys(context, node, list, sizeof list) == before);
}

static void check_arguments(muster_ctx_t *context)
{
    CHECK(muster_unwatch(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_unwatch(context, "") == MUSTER_ERR_LIMIT);
    CHECK(muster_attribute_keys(context, 0, NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_publish(context, NULL, "v", 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_publish(context, "k", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_withdraw(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_get(context, 0, NULL, NULL, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_get(context, 0, "k", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_watch(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_key_hash(NULL) == 0 && muster_key_hash("a") != muster_key_hash("b"));
}

static muster_ctx_t *attach(uint32_t flags)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "attributes.c";
    config.node = "here";
    config.flags = flags;
    int status = muster_init(&config, &context);
    CHECK(status == MUSTER_OK);
    return status < 0 ? NULL : context;
}

#define KEYS_A_PROCESS 256

/* A separate process that watches as many keys as it may, all different from other processes' keys, and ends. */
static void watch_all(int number)
{
    char key[32];
    muster_ctx_t *context = attach(0);
    if (!context)
        return;
    for (int i = 0; i < KEYS_A_PROCESS; i++) {
        snprintf(key, sizeof key, "%d.%d", number, i);
        CHECK(muster_watch(context, key) == MUSTER_OK);
    }
    CHECK(muster_watch(context, "one more") == MUSTER_ERR_LIMIT);
    CHECK(muster_unwatch(context, key) == 1);
    CHECK(muster_watch(context, "one more") == MUSTER_OK);
    CHECK(muster_finalize(context) == MUSTER_OK);
}

/* An agent watches at most 4096 keys; the keys of processes that have ended are free again. */
static void check_watchers_that_end(const char *program)
{
    char number[8];
    for (int i = 0; i < 4096 / KEYS_A_PROCESS + 4; i++) {
        int status = -1;
        snprintf(number, sizeof number, "%d", i);
        pid_t child = fork();
        if (child == 0) {
            execl(program, program, number, (char *)NULL);
            _exit(127);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
}

static void run(uint32_t flags, const char *program)
{
    muster_ctx_t *context = attach(flags);
    if (!context)
        return;
    int node = muster_my_node(context);
    CHECK(node >= 0);
    check_arguments(context);
    if (flags == 0) {
        check_values(context, (uint32_t)node);
        check_keys(context, (uint32_t)node);
        check_limits(context, (uint32_t)node);
        CHECK(muster_withdraw(context, "fill1") == 1);
        check_watchers_that_end(program);
    }
    check_watch(context, (uint32_t)node);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
}

int main(int count, char **arguments)
{
    if (count > 1) {
        watch_all(atoi(arguments[1]));
    } else {
        run(0, arguments[0]);
        run(MUSTER_NO_THREAD, arguments[0]);
    }
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
