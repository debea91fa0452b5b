/* Prints each signal that it receives, with the sender's pid; SIGTERM ends it. */
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

int main(void)
{
	struct signalfd_siginfo got;
	sigset_t all;
	int source;

	sigemptyset(&all);
	sigaddset(&all, SIGUSR1);
	sigaddset(&all, SIGUSR2);
	sigaddset(&all, SIGTERM);
	sigaddset(&all, SIGINT);
	sigprocmask(SIG_BLOCK, &all, NULL);
	source = signalfd(-1, &all, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("UP\n");
	while (source >= 0 && read(source, &got, sizeof got) == sizeof got) {
		printf("GOT %u from %u\n", got.ssi_signo, got.ssi_pid);
		if (got.ssi_signo == SIGTERM)
			return 0;
	}
	return 1;
}
