/* A C program with a real agent: requests about rails, peers, policy and counters read and change the
 * configuration. Exit code 0 if all checks pass. */
#include "check.h"

#include <stdlib.h>

static char answer[65536], again[65536], request[65536 + 16];

static int make_request(muster_ctx_t *context, const char *line)
{
    answer[0] = 0;
    return muster_control(context, line, answer, sizeof answer);
}

static int answer_has(const char *text)
{
    return strstr(answer, text) != NULL;
}

/* cfg-005, dbg-080: a program can make all requests that the commands can. */
static void check_questions(muster_ctx_t *context)
{
    CHECK(make_request(context, "rails") > 0 && answer_has("muster/rails/v1") && answer_has("\"sends\":"));
    CHECK(make_request(context, "nets") > 0 && answer_has("\"net\":\"udp0\""));
    CHECK(make_request(context, "peers 10 0") > 0 && answer_has("muster/peers/v1"));
    CHECK(make_request(context, "policy") > 0 && answer_has("\"rules\":[]"));
    CHECK(make_request(context, "stats") > 0 && answer_has("rail_sends"));
    CHECK(make_request(context, "members") > 0 && answer_has("\"name\":\"here\""));
    CHECK(make_request(context, "explain 127.0.0.9@udp0") == MUSTER_ERR_REFUSED);
    CHECK(strstr(muster_last_error_message(), "no NID 127.0.0.9@udp0 is known") != NULL);
}

static void check_changes(muster_ctx_t *context)
{
    CHECK(make_request(context, "rails add 127.0.0.2:0@udp1") > 0 && answer_has("is open"));
    CHECK(make_request(context, "rails") > 0 && answer_has("127.0.0.2:"));
    CHECK(make_request(context, "policy add net=udp1 priority=3") > 0);
    CHECK(make_request(context, "policy") > 0 && answer_has("\"priority\":3"));
    CHECK(make_request(context, "limits set numa_range=30") > 0);
    CHECK(make_request(context, "peers add 127.0.0.9@udp0") > 0);
    CHECK(make_request(context, "stats zero") > 0);

    /* Export, import, export: both exports are equal. */
    CHECK(make_request(context, "export") > 0 && answer_has("numa_range: 30"));
    memcpy(again, answer, sizeof again);
    strcpy(request, "import\n");
    char *to = request + strlen(request);
    for (const char *from = strstr(answer, "\"yaml\":\"") + 8; *from != '"'; from++) {
        if (*from == '\\' && from[1] == 'n')
            *to++ = '\n', from++;
        else if (*from == '\\')
            *to++ = *++from;
        else
            *to++ = *from;
    }
    *to = 0;
    CHECK(make_request(context, "policy del 1") > 0);
    CHECK(make_request(context, request) > 0 && answer_has("done"));
    CHECK(make_request(context, "export") > 0 && strcmp(answer, again) == 0);
    CHECK(make_request(context, "rails del 127.0.0.2@udp1") > 0);
}

/* A refused request changes nothing, and the message has the reason. */
static void check_refusals(muster_ctx_t *context)
{
    char text[8] = "keep";
    CHECK(muster_control(context, NULL, answer, sizeof answer) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_control(context, "rails", NULL, 8) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_control(context, "dance", text, sizeof text) == MUSTER_ERR_REFUSED);
    CHECK(strstr(muster_last_error_message(), "dance") != NULL);
    CHECK(muster_control(context, "rails del 127.0.0.1@udp0", text, sizeof text) ==
          MUSTER_ERR_REFUSED);
    CHECK(strstr(muster_last_error_message(), "the last rail of this node") != NULL);
    CHECK(muster_control(context, "import\nversion: 1\nnest: 1\n", text, sizeof text) ==
          MUSTER_ERR_REFUSED);
    CHECK(strstr(muster_last_error_message(), "line 2, column 1") != NULL);
    CHECK(muster_control(context, "gossip start", text, sizeof text) == MUSTER_ERR_REFUSED);
    CHECK(strstr(muster_last_error_message(), "this agent runs the overlay") != NULL);
    CHECK(strcmp(text, "keep") == 0);
    /* As snprintf: the whole length is returned, the answer is truncated to fit. */
    CHECK(muster_control(context, "policy", text, sizeof text) > 8 && text[7] == 0);
    CHECK(muster_control(context, "policy", NULL, 0) > 8);
}

int main(void)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "control.c";
    config.node = "here";
    CHECK(muster_init(&config, &context) == MUSTER_OK);
    if (context != NULL) {
        check_questions(context);
        check_changes(context);
        check_refusals(context);
        CHECK(muster_finalize(context) == MUSTER_OK);
        check_context(context, MUSTER_ERR_NOT_INITIALIZED);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
