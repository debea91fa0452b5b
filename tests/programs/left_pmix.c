/* left_pmix PROGRAM [ARGUMENT...]: initializes and finalizes PMIx, as at start-up, and executes the program. */
#include <pmix.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words)
{
    pmix_proc_t own;
    if (count < 2 || PMIx_Init(&own, NULL, 0) != PMIX_SUCCESS) {
        fprintf(stderr, "left_pmix: no program given, or PMIx_Init failed\n");
        return 2;
    }
    PMIx_Finalize(NULL, 0);
    execv(words[1], words + 1);
    return 3;
}
