/* A C program with a real agent: attributes are written, read, watched and refused. Exit code 0 if
 * all checks held. */
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#define DEADLINE_S 30
#define LARGEST 65536

static char large[LARGEST + 1], back[LARGEST + 1];

/* Waits on the descriptor for a change of this key. */
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
    /* As snprintf: the whole length is returned, what fits is written. */
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

/* Each limit is an error that names it, and what was there stays. */
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
    CHECK(muster_attribute_get(context, node, "load", NULL, 0) == MUSTER_ERR_NO_SUCH_KEY);
}

static void check_arguments(muster_ctx_t *context)
{
    CHECK(muster_publish(context, NULL, "v", 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_publish(context, "k", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_withdraw(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_get(context, 0, NULL, NULL, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_attribute_get(context, 0, "k", NULL, 1) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_watch(context, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_key_hash(NULL) == 0 && muster_key_hash("a") != muster_key_hash("b"));
}

static void run(uint32_t flags)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "attributes.c";
    config.node = "here";
    config.flags = flags;
    int status = muster_init(&config, &context);
    CHECK(status == MUSTER_OK);
    if (status < 0)
        return;
    int node = muster_my_node(context);
    CHECK(node >= 0);
    check_arguments(context);
    if (flags == 0) {
        check_values(context, (uint32_t)node);
        check_limits(context, (uint32_t)node);
        CHECK(muster_withdraw(context, "fill1") == 1);
    }
    check_watch(context, (uint32_t)node);
    CHECK(muster_finalize(context) == MUSTER_OK);
    check_context(context, MUSTER_ERR_NOT_INITIALIZED);
}

int main(void)
{
    run(0);
    run(MUSTER_NO_THREAD);
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
