/* A C program that uses the API wrongly in every way that requires no agent, and checks the returned codes. Each
 * failed check is printed; the exit code is not 0 if there are any. */
#include "check.h"

#include <stdlib.h>

static void check_init(void)
{
    muster_ctx_t *context = (muster_ctx_t *)&failures;
    muster_config_t config = MUSTER_CONFIG_INIT;
    CHECK(muster_init(&config, NULL) == MUSTER_ERR_ARGUMENT);

    config.struct_size = 0;
    CHECK(muster_init(&config, &context) == MUSTER_ERR_STRUCT_SIZE);
    CHECK(context == NULL);
    CHECK(strstr(muster_last_error_message(), "MUSTER_CONFIG_INIT") != NULL);

    config.struct_size = sizeof config;
    config.rank = -2;
    CHECK(muster_init(&config, &context) == MUSTER_ERR_CONFIG);
    CHECK(strstr(muster_last_error_message(), "rank") != NULL);
    config.rank = 5;
    config.ranks = 5;
    CHECK(muster_init(&config, &context) == MUSTER_ERR_CONFIG);
    config.rank = config.ranks = MUSTER_AUTO;
    config.flags = 1u << 31;
    CHECK(muster_init(&config, &context) == MUSTER_ERR_CONFIG);
    config.flags = 0;
    config.job = "\xff\xfe";
    CHECK(muster_init(&config, &context) == MUSTER_ERR_CONFIG);
    CHECK(context == NULL);
}

/* The error names a musterd that cannot be started. */
static void check_no_agent(void)
{
    muster_ctx_t *context = NULL;
    muster_config_t config = MUSTER_CONFIG_INIT;
    config.job = "wrong_use.c";
    config.rank = 0;
    config.ranks = 1;
    config.timeout_ms = 5000;
    setenv("MUSTER_AGENT", "/nowhere/musterd", 1);
    CHECK(muster_init(&config, &context) == MUSTER_ERR_AGENT_START);
    CHECK(context == NULL);
    CHECK(strstr(muster_last_error_message(), "/nowhere/musterd") != NULL);
}

static void check_arguments(void)
{
    muster_event_t event = MUSTER_EVENT_INIT;
    event.struct_size = 1;
    CHECK(muster_next_event(NULL, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_next_event(NULL, &event) == MUSTER_ERR_STRUCT_SIZE);
    CHECK(muster_poll_events(NULL, NULL, 1, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_poll_events(NULL, &event, 0, 0) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_poll_events(NULL, &event, 1, 0) == MUSTER_ERR_STRUCT_SIZE);
    event.struct_size = sizeof event + 1;
    CHECK(muster_poll_events(NULL, &event, 1, 0) == MUSTER_ERR_STRUCT_SIZE);
    CHECK(muster_dispatch(NULL, NULL, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_epoch(NULL, NULL) == MUSTER_ERR_ARGUMENT);
    CHECK(muster_event_describe(NULL, NULL, NULL, 0) == MUSTER_ERR_ARGUMENT);
}

static void check_names(void)
{
    int major = -1, minor = -1, patch = -1;
    CHECK(muster_version(&major, &minor, &patch) == MUSTER_OK);
    CHECK(major == MUSTER_VERSION_MAJOR && minor == MUSTER_VERSION_MINOR &&
          patch == MUSTER_VERSION_PATCH);
    CHECK(muster_version(NULL, NULL, NULL) == MUSTER_OK);
    for (int code = -200; code <= 3; code++) {
        CHECK(strlen(muster_strerror(code)) > 0);
        CHECK(strncmp(muster_error_name(code), "MUSTER_", 7) == 0);
        CHECK(strlen(muster_event_name(code)) > 0 && strlen(muster_cause_name(code)) > 0);
        CHECK(strlen(muster_node_state_name(code)) > 0 && strlen(muster_rank_state_name(code)) > 0);
    }
    CHECK(strcmp(muster_error_name(MUSTER_ERR_TIMEOUT), "MUSTER_ERR_TIMEOUT") == 0);
    CHECK(strcmp(muster_error_name(MUSTER_OK), "MUSTER_OK") == 0);
    CHECK(strcmp(muster_error_name(-1000), "MUSTER_ERR_UNKNOWN") == 0);
    CHECK(strcmp(muster_event_name(MUSTER_EVENT_RANK_FAILED), "RANK_FAILED") == 0);
    CHECK(strcmp(muster_cause_name(MUSTER_CAUSE_FUTEX), "kernel futex") == 0);
    CHECK(strcmp(muster_node_state_name(MUSTER_NODE_SUSPECT), "Suspect") == 0);
    CHECK(strcmp(muster_rank_state_name(MUSTER_RANK_HUNG), "Hung") == 0);
    CHECK(strcmp(muster_cause_name(MUSTER_CAUSE_NEW_AGENT), "new agent") == 0);
    CHECK(strcmp(muster_event_name(19), "?") == 0 && strcmp(muster_node_state_name(6), "?") == 0);
}

int main(void)
{
    int foreign = 0;
    CHECK(strcmp(muster_last_error_message(), "") == 0);
    check_names();
    check_context(NULL, MUSTER_ERR_ARGUMENT);
    check_context((muster_ctx_t *)&foreign, MUSTER_ERR_ARGUMENT);
    check_arguments();
    check_init();
    check_no_agent();
    if (failures)
        printf("%d checks failed\n", failures);
    return failures != 0;
}
