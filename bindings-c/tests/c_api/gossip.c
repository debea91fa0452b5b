/* A C program with a real agent of age gossip: it reads and changes the parameters, and makes requests that are
 * refused. Exit code 0 if all checks pass. The argument is the net of the agent: for "127.96.1", MUSTER_PARTICIPANTS
 * has the agent's NID, 127.96.1.1@udp0, and 127.96.1.2@udp0. */
#include "check.h"

#include <stdlib.h>

static const char *net;
static char answer[65536];

/* The text with each `%` replaced by the net. */
static const char *here(const char *text)
{
    static char whole[512];
    size_t length = 0;
    for (; *text; text++) {
        const char part[] = {*text, 0};
        length += (size_t)snprintf(whole + length, sizeof whole - length, "%s", *text == '%' ? net : part);
        if (length >= sizeof whole)
            abort();
    }
    return whole;
}

static int make_request(muster_ctx_t *context, const char *line)
{
    answer[0] = 0;
    return muster_control(context, here(line), answer, sizeof answer);
}

static int answer_has(const char *text)
{
    return strstr(answer, here(text)) != NULL;
}

/* AG-01, AG-17: the initial parameters. */
static void check_status(muster_ctx_t *context)
{
    CHECK(make_request(context, "gossip") > 0 && answer_has("muster/gossip/v1"));
    CHECK(answer_has("\"running\":true") && answer_has("\"own\":\"%.1@udp0\""));
    CHECK(answer_has("\"interval_ms\":250.0") && answer_has("\"round_trip_ms\":2.0"));
    CHECK(answer_has("\"nid\":\"%.2@udp0\"") && answer_has("\"dead_after\":") && answer_has("\"digest\":"));
}

/* AG-01, AG-11: changed parameters. */
static void check_changes(muster_ctx_t *context)
{
    CHECK(make_request(context, "gossip stop") > 0 && answer_has("gossip is stopped"));
    CHECK(make_request(context, "gossip") > 0 && answer_has("\"running\":false"));
    CHECK(make_request(context, "gossip init 300 5 safe - %.[1-4]@udp0") > 0);
    CHECK(answer_has("initialised with 4 participants"));
    CHECK(make_request(context, "gossip") > 0 && answer_has("\"interval_ms\":300.0"));
    CHECK(answer_has("\"round_trip_ms\":5.0") && answer_has("\"nid\":\"%.4@udp0\""));
    CHECK(answer_has("\"running\":false"));
    CHECK(make_request(context, "gossip init 20 1 fast 0.8 a=%.1@udp0 b=%.2@udp0") > 0);
    CHECK(make_request(context, "gossip") > 0 && answer_has("\"interval_ms\":20.0"));
    CHECK(make_request(context, "gossip start") > 0 && answer_has("gossip continues"));
    CHECK(make_request(context, "gossip") > 0 && answer_has("\"running\":true"));
}

static void check_refusal(muster_ctx_t *context, const char *line, const char *reason)
{
    CHECK(make_request(context, line) == MUSTER_ERR_REFUSED);
    CHECK(strstr(muster_last_error_message(), here(reason)) != NULL);
    if (strstr(muster_last_error_message(), here(reason)) == NULL)
        printf("%s: %s\n", line, muster_last_error_message());
}

/* A refused request changes nothing, and the message has the reason. */
static void check_refusals(muster_ctx_t *context)
{
    check_refusal(context, "gossip init 100 1 safe - %.[1-4]@udp0", "200");
    check_refusal(context, "gossip init soon 1 safe - %.[1-4]@udp0", "soon");
    check_refusal(context, "gossip init 300 1 safe - 127.0.9.[1-4]@udp0", "%.1@udp0");
    check_refusal(context, "gossip init 300 1 safe - %.[1-4]", "%.");
    check_refusal(context, "gossip init 300 1 safe 1.5 %.[1-4]@udp0", "between 0 and 1");
    check_refusal(context, "gossip dance", "dance");
    CHECK(make_request(context, "gossip") > 0 && answer_has("\"interval_ms\":20.0") && answer_has("\"running\":true"));
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    net = arguments[1];
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "gossip.c";
    config.node = "here";
    CHECK(muster_init(&config, &context) == MUSTER_OK);
    if (context != NULL) {
        check_status(context);
        check_changes(context);
        check_refusals(context);
        CHECK(muster_finalize(context) == MUSTER_OK);
        check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
