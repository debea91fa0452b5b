/* A libfabric provider for tests, which behaves like one that drives a device.
 *
 * It is loaded through FI_PROVIDER_PATH, and replaces the provider that MUSTER_TEST_PROVIDER names: verbs together
 * with ofi_rxm, the layer above it, psm3 (the default), or cxi. Compiled with -DUD, it replaces verbs' unreliable
 * datagrams, which require 40 bytes in front of every message (FI_MSG_PREFIX), have no descriptor to wait for, and
 * have another address each time an endpoint is opened, which only fi_getname tells. Like device providers, it
 * requires an event queue on every endpoint, does not support fi_inject, completes sends later, and reports when its
 * device fails. It sends messages over UDP.
 *
 * As verbs, it uses IP addresses. As psm3 and as cxi, it has addresses of its own kind, and chooses one each time an
 * endpoint is opened; only fi_getname tells it. It refuses a query with a node and a service, which mean something
 * else for each of these providers. As cxi, it has no descriptor to wait for, and requires FI_MR_ENDPOINT and no
 * registration (fi_cxi(7)); otherwise it requires every buffer to be registered (FI_MR_LOCAL).
 *
 * Files in the directory MUSTER_TEST_DEVICES control the device of an address:
 * ADDRESS                   the device is down: sends in progress fail, and it receives nothing
 * ADDRESS.stuck             sends do not complete; when the file is removed, they fail (ETIMEDOUT)
 * ADDRESS.wait-fails        fi_trywait fails
 * ADDRESS.event-unreadable  there is an event that cannot be read
 * ADDRESS.shut              there is one event of a connection that has ended
 *
 * The first message to a peer causes an event of a new connection. When the events of new and ended connections are
 * read, the provider creates ADDRESS.connected and ADDRESS.shutdown. The longest message is MUSTER_TEST_MESSAGE_MAX
 * bytes, if that variable is set.
 *
 * With addresses of its own kind, all endpoints of a process have the same device, whose ADDRESS is 127.0.0.1.
 *
 * The traffic class of an endpoint is written to ADDRESS:PORT.class, or with addresses of its own kind to
 * 127.0.0.1:N.class for the endpoint N of the process, from 0. If a class is requested, the provider by
 * default reports none. With MUSTER_TEST_CLASS=honour it reports that it uses the class; with map, that it uses best
 * effort; with refuse it offers no endpoint, and with refuse-open it fails to open one.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define QUEUE 256

#ifdef UD
/* The size of the packet header, which the device writes before a received message. */
#define PREFIX 40
#define MESSAGE_MAX 4096
#define FORMAT FI_ADDR_IB_UD
#else
#define PREFIX 0
#define MESSAGE_MAX 65000
#define FORMAT (is_cxi ? FI_ADDR_CXI : FI_ADDR_PSMX3)
#endif

static const size_t prefix = PREFIX;

/* The provider's own kind of address, as long as psm3's. */
struct address { uint32_t mark, ip; uint16_t port; uint16_t pad[11]; };
#define MARK 0x4d535431

/* What this replaces: verbs and ofi_rxm, cxi, or else psm3. */
static int is_verbs, is_cxi;

/* Whether it has addresses of its own kind. */
static int has_names(void)
{
	return !is_verbs && !PREFIX;
}

static int has_class(const char *how)
{
	const char *set = getenv("MUSTER_TEST_CLASS");

	return set && !strcmp(set, how);
}

static size_t address_length(void)
{
	return is_verbs ? sizeof(struct sockaddr_in) : sizeof(struct address);
}

/* Converts an address from libfabric; returns whether it is one of this provider. */
static int read_address(const void *from, struct address *address)
{
	const struct sockaddr_in *name = from;

	if (is_verbs)
		*address = (struct address){ MARK, name->sin_addr.s_addr, name->sin_port, { 0 } };
	else
		memcpy(address, from, sizeof *address);
	return address->mark == MARK && (!is_verbs || name->sin_family == AF_INET);
}

/* Converts an address in place for libfabric. */
static void *write_address(struct address *address)
{
	struct sockaddr_in name = { .sin_family = AF_INET };

	if (address && is_verbs) {
		name.sin_port = address->port;
		name.sin_addr.s_addr = address->ip;
		memcpy(address, &name, sizeof name);
	}
	return address;
}

struct receive { void *buffer, *context; size_t length; };
struct done { void *context; int error; };

struct mr { struct fid_mr mr; char *start; size_t length; };
struct av { struct fid_av av; struct address *peers; size_t count; };
struct eq { struct fid_eq eq; struct ep *ep; int wake, reported, connects, shut; };
struct cq { struct fid_cq cq; struct ep *ep; int epoll, wake; struct fi_cq_err_entry failed; };
struct ep {
	struct fid_ep ep;
	int socket;
	struct address own;
	struct cq *cq;
	struct eq *eq;
	struct av *av;
	struct receive receives[QUEUE];
	unsigned first_receive, receive_count;
	struct done dones[QUEUE];
	unsigned first_done, done_count;
	unsigned char connected[QUEUE];
};

static int has_file(const struct address *own, const char *how)
{
	char path[4096], text[INET_ADDRSTRLEN];
	struct in_addr ip = { own->ip };
	const char *directory = getenv("MUSTER_TEST_DEVICES");

	if (!directory || !inet_ntop(AF_INET, &ip, text, sizeof text))
		return 0;
	snprintf(path, sizeof path, "%s/%s%s", directory, text, how);
	return access(path, F_OK) == 0;
}

static void create_file(const struct address *own, const char *how)
{
	char path[4096], text[INET_ADDRSTRLEN];
	struct in_addr ip = { own->ip };
	const char *directory = getenv("MUSTER_TEST_DEVICES");
	FILE *file;

	if (!directory || !inet_ntop(AF_INET, &ip, text, sizeof text))
		return;
	snprintf(path, sizeof path, "%s/%s%s", directory, text, how);
	file = fopen(path, "w");
	if (file)
		fclose(file);
}

static int is_down(const struct address *own)
{
	return has_file(own, "");
}

static void ring(int wake)
{
	uint64_t one = 1;

	if (write(wake, &one, sizeof one) < 0)
		abort();
}

static void drain(int wake)
{
	uint64_t count;

	while (read(wake, &count, sizeof count) > 0)
		;
}

static int close_plain(struct fid *fid)
{
	free(fid);
	return 0;
}

static struct fi_ops plain_ops = { .size = sizeof(struct fi_ops), .close = close_plain };

/* Registration. */

static struct fi_ops mr_fi_ops = { .size = sizeof(struct fi_ops), .close = close_plain };

static int mr_reg(struct fid *fid, const void *buffer, size_t length, uint64_t access,
		  uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
	struct mr *mr = calloc(1, sizeof *mr);

	(void)fid, (void)access, (void)offset, (void)flags;
	if (!mr)
		return -FI_ENOMEM;
	mr->start = (char *)buffer;
	mr->length = length;
	mr->mr.fid = (struct fid){ FI_CLASS_MR, context, &mr_fi_ops };
	mr->mr.mem_desc = mr;
	mr->mr.key = key;
	*out = &mr->mr;
	return 0;
}

static struct fi_ops_mr mr_ops = { .size = sizeof(struct fi_ops_mr), .reg = mr_reg };

static int is_registered(const void *buffer, size_t length, void *desc)
{
	const struct mr *mr = desc;
	const char *start = buffer;

	if (is_cxi)
		return !mr;
	return mr && start >= mr->start && start + length <= mr->start + mr->length;
}

/* Addresses. */

static int av_insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *out,
		     uint64_t flags, void *context)
{
	struct av *av = (struct av *)fid;
	const char *from = addresses;

	(void)flags, (void)context;
	for (size_t i = 0; i < count; i++) {
		struct address *peers = realloc(av->peers, (av->count + 1) * sizeof *peers);

		if (!peers)
			return 0;
		av->peers = peers;
		if (!read_address(from + i * address_length(), &peers[av->count]))
			return 0;
		out[i] = av->count++;
	}
	return count;
}

static int av_remove(struct fid_av *fid, fi_addr_t *addresses, size_t count, uint64_t flags)
{
	(void)fid, (void)addresses, (void)count, (void)flags;
	return 0;
}

static int av_close(struct fid *fid)
{
	free(((struct av *)fid)->peers);
	free(fid);
	return 0;
}

static struct fi_ops av_fi_ops = { .size = sizeof(struct fi_ops), .close = av_close };
static struct fi_ops_av av_ops = {
	.size = sizeof(struct fi_ops_av), .insert = av_insert, .remove = av_remove,
};

static int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out,
		   void *context)
{
	struct av *av = calloc(1, sizeof *av);

	(void)domain, (void)attr;
	if (!av)
		return -FI_ENOMEM;
	av->av.fid = (struct fid){ FI_CLASS_AV, context, &av_fi_ops };
	av->av.ops = &av_ops;
	*out = &av->av;
	return 0;
}

/* Events: each failure of the device is reported once. */

static int eq_is_unreadable(const struct eq *eq)
{
	return eq->ep && has_file(&eq->ep->own, ".event-unreadable");
}

static int eq_has_error(struct eq *eq)
{
	int down = eq->ep && is_down(&eq->ep->own);

	if (eq_is_unreadable(eq))
		return 1;
	if (!down)
		eq->reported = 0;
	return down && !eq->reported;
}

static int eq_was_shut(struct eq *eq)
{
	int shut = eq->ep && has_file(&eq->ep->own, ".shut");

	if (!shut)
		eq->shut = 0;
	return shut && !eq->shut;
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buffer, size_t length,
		       uint64_t flags)
{
	struct eq *eq = (struct eq *)fid;
	struct fi_eq_cm_entry entry = { 0 };

	(void)flags;
	drain(eq->wake);
	if (eq_has_error(eq))
		return -FI_EAVAIL;
	if (!eq->ep)
		return -FI_EAGAIN;
	if (eq->connects) {
		eq->connects--;
		*event = FI_CONNECTED;
		create_file(&eq->ep->own, ".connected");
	} else if (eq_was_shut(eq)) {
		eq->shut = 1;
		*event = FI_SHUTDOWN;
		create_file(&eq->ep->own, ".shutdown");
	} else {
		return -FI_EAGAIN;
	}
	if (eq->connects)
		ring(eq->wake);
	entry.fid = &eq->ep->ep.fid;
	if (length > sizeof entry)
		length = sizeof entry;
	memcpy(buffer, &entry, length);
	return length;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *entry, uint64_t flags)
{
	struct eq *eq = (struct eq *)fid;

	(void)flags;
	if (eq_is_unreadable(eq))
		return -FI_EIO;
	if (!eq_has_error(eq))
		return -FI_EAGAIN;
	eq->reported = 1;
	*entry = (struct fi_eq_err_entry){ .fid = &eq->ep->ep.fid, .err = FI_ENODEV };
	return sizeof *entry;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	if (command != FI_GETWAIT)
		return -FI_ENOSYS;
	*(int *)arg = ((struct eq *)fid)->wake;
	return 0;
}

static int eq_close(struct fid *fid)
{
	close(((struct eq *)fid)->wake);
	free(fid);
	return 0;
}

static struct fi_ops eq_fi_ops = {
	.size = sizeof(struct fi_ops), .close = eq_close, .control = eq_control,
};
static struct fi_ops_eq eq_ops = {
	.size = sizeof(struct fi_ops_eq), .read = eq_read, .readerr = eq_readerr,
};

static int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out,
		   void *context)
{
	struct eq *eq = calloc(1, sizeof *eq);

	(void)fabric, (void)attr;
	if (!eq)
		return -FI_ENOMEM;
	eq->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	eq->eq.fid = (struct fid){ FI_CLASS_EQ, context, &eq_fi_ops };
	eq->eq.ops = &eq_ops;
	*out = &eq->eq;
	return 0;
}

/* Completions. */

static int complete(struct ep *ep, void *context, int error)
{
	if (ep->done_count == QUEUE)
		return -FI_EAGAIN;
	ep->dones[(ep->first_done + ep->done_count++) % QUEUE] = (struct done){ context, error };
	ring(ep->cq->wake);
	return 0;
}

static ssize_t cq_read(struct fid_cq *fid, void *buffer, size_t count)
{
	struct cq *cq = (struct cq *)fid;
	struct ep *ep = cq->ep;
	struct fi_cq_msg_entry *entries = buffer;
	size_t got = 0;

	drain(cq->wake);
	while (got < count && ep && ep->done_count && !has_file(&ep->own, ".stuck")) {
		struct done *done = &ep->dones[ep->first_done];
		int error = done->error ? done->error : is_down(&ep->own) ? FI_ENODEV : 0;

		if (error && got)
			break;
		ep->first_done = (ep->first_done + 1) % QUEUE;
		ep->done_count--;
		if (error) {
			cq->failed = (struct fi_cq_err_entry){ .op_context = done->context,
							       .flags = FI_SEND, .err = error,
							       .prov_errno = 12 };
			return -FI_EAVAIL;
		}
		entries[got++] = (struct fi_cq_msg_entry){ done->context, FI_SEND | FI_MSG, 0 };
	}
	while (got < count && ep && ep->receive_count && !is_down(&ep->own)) {
		struct receive *receive = &ep->receives[ep->first_receive];
		ssize_t length = recv(ep->socket, (char *)receive->buffer + PREFIX,
				      receive->length - PREFIX, MSG_DONTWAIT);

		if (length < 0)
			break;
		memset(receive->buffer, 0xee, prefix);
		length += PREFIX;
		ep->first_receive = (ep->first_receive + 1) % QUEUE;
		ep->receive_count--;
		entries[got++] = (struct fi_cq_msg_entry){ receive->context, FI_RECV | FI_MSG, length };
	}
	if (ep && ep->done_count && !has_file(&ep->own, ".stuck"))
		ring(cq->wake);
	return got ? (ssize_t)got : -FI_EAGAIN;
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *entry, uint64_t flags)
{
	struct cq *cq = (struct cq *)fid;

	(void)flags;
	if (!cq->failed.err)
		return -FI_EAGAIN;
	*entry = cq->failed;
	cq->failed.err = 0;
	return 1;
}

/* As verbs' text for a peer that does not answer. */
static const char *cq_strerror(struct fid_cq *fid, int code, const void *data, char *text, size_t length)
{
	(void)fid, (void)data, (void)text, (void)length;
	return code == 12 ? "transport retry counter exceeded" : NULL;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	if (command != FI_GETWAIT)
		return -FI_ENOSYS;
	*(int *)arg = ((struct cq *)fid)->epoll;
	return 0;
}

static int cq_close(struct fid *fid)
{
	struct cq *cq = (struct cq *)fid;

	close(cq->epoll);
	close(cq->wake);
	free(cq);
	return 0;
}

static struct fi_ops cq_fi_ops = {
	.size = sizeof(struct fi_ops), .close = cq_close, .control = cq_control,
};
static struct fi_ops_cq cq_ops = {
	.size = sizeof(struct fi_ops_cq), .read = cq_read, .readerr = cq_readerr,
	.strerror = cq_strerror,
};

static int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out,
		   void *context)
{
	struct cq *cq = calloc(1, sizeof *cq);
	struct epoll_event in = { .events = EPOLLIN };

	(void)domain;
	if (!cq)
		return -FI_ENOMEM;
	if ((PREFIX || is_cxi) && attr->wait_obj != FI_WAIT_NONE) {
		free(cq);
		return -FI_ENOSYS;
	}
	cq->epoll = epoll_create1(EPOLL_CLOEXEC);
	cq->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	epoll_ctl(cq->epoll, EPOLL_CTL_ADD, cq->wake, &in);
	cq->cq.fid = (struct fid){ FI_CLASS_CQ, context, &cq_fi_ops };
	cq->cq.ops = &cq_ops;
	*out = &cq->cq;
	return 0;
}

/* Endpoints. */

static ssize_t ep_recv(struct fid_ep *fid, void *buffer, size_t length, void *desc,
		       fi_addr_t from, void *context)
{
	struct ep *ep = (struct ep *)fid;

	(void)from;
	if (!is_registered(buffer, length, desc))
		return -FI_EFAULT;
	if (ep->receive_count == QUEUE)
		return -FI_EAGAIN;
	ep->receives[(ep->first_receive + ep->receive_count++) % QUEUE] =
		(struct receive){ buffer, context, length };
	return 0;
}

static ssize_t ep_send(struct fid_ep *fid, const void *buffer, size_t length, void *desc,
		       fi_addr_t to, void *context)
{
	struct ep *ep = (struct ep *)fid;
	struct sockaddr_in name = { .sin_family = AF_INET };

	if (!is_registered(buffer, length, desc))
		return -FI_EFAULT;
	if (to >= ep->av->count)
		return -FI_EINVAL;
	if (is_down(&ep->own))
		return complete(ep, context, FI_ENODEV);
	if (has_file(&ep->own, ".stuck"))
		return complete(ep, context, FI_ETIMEDOUT);
	name.sin_port = ep->av->peers[to].port;
	name.sin_addr.s_addr = ep->av->peers[to].ip;
	if (length < prefix)
		return -FI_EINVAL;
	if (sendto(ep->socket, (const char *)buffer + PREFIX, length - PREFIX, 0,
		   (struct sockaddr *)&name, sizeof name) < 0)
		return -errno;
	if (ep->eq && to < QUEUE && !ep->connected[to]) {
		ep->connected[to] = 1;
		ep->eq->connects++;
		ring(ep->eq->wake);
	}
	return complete(ep, context, 0);
}

static ssize_t ep_inject(struct fid_ep *fid, const void *buffer, size_t length, fi_addr_t to)
{
	(void)fid, (void)buffer, (void)length, (void)to;
	return -FI_ENOSYS;
}

static struct fi_ops_msg msg_ops = {
	.size = sizeof(struct fi_ops_msg), .recv = ep_recv, .send = ep_send, .inject = ep_inject,
};

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct ep *ep = (struct ep *)fid;

	(void)flags;
	switch (other->fclass) {
	case FI_CLASS_CQ:
		ep->cq = (struct cq *)other;
		ep->cq->ep = ep;
		return 0;
	case FI_CLASS_AV:
		ep->av = (struct av *)other;
		return 0;
	case FI_CLASS_EQ:
		ep->eq = (struct eq *)other;
		ep->eq->ep = ep;
		return 0;
	}
	return -FI_EINVAL;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	struct ep *ep = (struct ep *)fid;
	struct sockaddr_in name = { .sin_family = AF_INET };
	struct epoll_event in = { .events = EPOLLIN };

	(void)arg;
	if (command != FI_ENABLE)
		return -FI_ENOSYS;
	if (!ep->eq)
		return -FI_ENOEQ;
	if (!ep->cq || !ep->av)
		return -FI_ENOCQ;
	name.sin_port = PREFIX ? 0 : ep->own.port;
	name.sin_addr.s_addr = ep->own.ip;
	ep->socket = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (ep->socket < 0 || bind(ep->socket, (struct sockaddr *)&name, sizeof name) < 0)
		return -errno;
	return epoll_ctl(ep->cq->epoll, EPOLL_CTL_ADD, ep->socket, &in) ? -errno : 0;
}

static int ep_close(struct fid *fid)
{
	struct ep *ep = (struct ep *)fid;

	if (ep->cq)
		ep->cq->ep = NULL;
	if (ep->eq)
		ep->eq->ep = NULL;
	close(ep->socket);
	free(ep);
	return 0;
}

static struct fi_ops ep_fi_ops = {
	.size = sizeof(struct fi_ops), .close = ep_close, .bind = ep_bind, .control = ep_control,
};

static int ep_getname(struct fid *fid, void *out, size_t *length)
{
	struct sockaddr_in name;
	socklen_t is = sizeof name;

	if (*length < address_length())
		return -FI_ETOOSMALL;
	if (getsockname(((struct ep *)fid)->socket, (struct sockaddr *)&name, &is))
		return -errno;
	if (is_verbs) {
		memcpy(out, &name, sizeof name);
	} else {
		struct address own = { MARK, name.sin_addr.s_addr, name.sin_port, { 0 } };

		memcpy(out, &own, sizeof own);
	}
	*length = address_length();
	return 0;
}

static struct fi_ops_cm cm_ops = { .size = sizeof(struct fi_ops_cm), .getname = ep_getname };

static void note_class(const struct address *own, uint32_t tclass)
{
	char path[4096], text[INET_ADDRSTRLEN];
	static unsigned endpoints;
	struct in_addr ip = { own->ip };
	const char *directory = getenv("MUSTER_TEST_DEVICES");
	FILE *file;

	if (!directory || !inet_ntop(AF_INET, &ip, text, sizeof text))
		return;
	snprintf(path, sizeof path, "%s/%s:%u.class", directory, text,
		 has_names() ? endpoints++ : ntohs(own->port));
	file = fopen(path, "w");
	if (file) {
		fprintf(file, "%#x", tclass);
		fclose(file);
	}
}

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out,
		    void *context)
{
	struct ep *ep;

	(void)domain;
	if (info->tx_attr->tclass && has_class("refuse-open"))
		return -FI_EINVAL;
	ep = calloc(1, sizeof *ep);
	if (!ep)
		return -FI_ENOMEM;
	ep->socket = -1;
	if (has_names())
		ep->own = (struct address){ MARK, htonl(INADDR_LOOPBACK), 0, { 0 } };
	else
		read_address(info->src_addr, &ep->own);
	note_class(&ep->own, info->tx_attr->tclass);
	ep->ep.fid = (struct fid){ FI_CLASS_EP, context, &ep_fi_ops };
	ep->ep.msg = &msg_ops;
	ep->ep.cm = &cm_ops;
	*out = &ep->ep;
	return 0;
}

/* Domain, fabric, provider. */

static struct fi_ops_domain domain_ops = {
	.size = sizeof(struct fi_ops_domain), .av_open = av_open, .cq_open = cq_open,
	.endpoint = endpoint,
};

static int domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out,
		  void *context)
{
	struct fid_domain *domain = calloc(1, sizeof *domain);

	(void)fabric, (void)info;
	if (!domain)
		return -FI_ENOMEM;
	domain->fid = (struct fid){ FI_CLASS_DOMAIN, context, &plain_ops };
	domain->ops = &domain_ops;
	domain->mr = &mr_ops;
	*out = domain;
	return 0;
}

/* The descriptors signal all events, so waiting is safe unless the device has failed. */
static int trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	(void)fabric;
	for (int i = 0; i < count; i++) {
		struct ep *ep = fids[i]->fclass == FI_CLASS_CQ ? ((struct cq *)fids[i])->ep : NULL;

		if (ep && has_file(&ep->own, ".wait-fails"))
			return -FI_EINVAL;
		if (ep && ep->done_count)
			return -FI_EAGAIN;
		if (fids[i]->fclass == FI_CLASS_EQ && eq_has_error((struct eq *)fids[i]))
			return -FI_EAGAIN;
	}
	return 0;
}

static struct fi_ops_fabric fabric_ops = {
	.size = sizeof(struct fi_ops_fabric), .domain = domain, .eq_open = eq_open, .trywait = trywait,
};

static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
	struct fid_fabric *fabric = calloc(1, sizeof *fabric);

	(void)attr;
	if (!fabric)
		return -FI_ENOMEM;
	fabric->fid = (struct fid){ FI_CLASS_FABRIC, context, &plain_ops };
	fabric->ops = &fabric_ops;
	*out = fabric;
	return 0;
}

static void *find(const char *node, const char *service)
{
	struct address *address = calloc(1, sizeof *address);
	struct in_addr ip;

	if (!address || inet_pton(AF_INET, node, &ip) != 1) {
		free(address);
		return NULL;
	}
	address->mark = MARK;
	address->ip = ip.s_addr;
	address->port = htons(service ? atoi(service) : 0);
	return address;
}

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **out)
{
	const char *longest = getenv("MUSTER_TEST_MESSAGE_MAX");
	uint32_t tclass = hints && hints->tx_attr ? hints->tx_attr->tclass : 0;
	int mode = is_cxi ? FI_MR_ENDPOINT : FI_MR_LOCAL;
	struct fi_info *info;

	(void)version;
	if (flags & FI_PROV_ATTR_ONLY)
		return -FI_ENODATA;
	if (hints && hints->ep_attr && hints->ep_attr->type != (PREFIX ? FI_EP_DGRAM : FI_EP_RDM))
		return -FI_ENODATA;
	if (PREFIX && !(hints && hints->mode & FI_MSG_PREFIX))
		return -FI_ENODATA;
	if (hints && hints->domain_attr && !(hints->domain_attr->mr_mode & mode))
		return -FI_ENODATA;
	if (has_names() && (node || service))
		return -FI_ENODATA;
	/* A query for another provider below ofi_rxm is not for this one. */
	if (is_verbs && (!hints || !hints->fabric_attr || !hints->fabric_attr->prov_name ||
			 strncmp(hints->fabric_attr->prov_name, "verbs", 5)))
		return -FI_ENODATA;
	if (PREFIX && node && !(flags & FI_SOURCE))
		return -FI_ENODATA;
	if (tclass && has_class("refuse"))
		return -FI_ENODATA;
	info = fi_allocinfo();
	if (!info)
		return -FI_ENOMEM;
	info->caps = FI_MSG | FI_SEND | FI_RECV;
	info->addr_format = is_verbs ? FI_SOCKADDR_IN : FORMAT;
	info->mode = PREFIX ? FI_MSG_PREFIX : 0;
	info->ep_attr->msg_prefix_size = PREFIX;
	if (node && flags & FI_SOURCE) {
		info->src_addr = write_address(find(node, service));
		info->src_addrlen = address_length();
	}
	info->ep_attr->type = PREFIX ? FI_EP_DGRAM : FI_EP_RDM;
	info->ep_attr->max_msg_size = longest ? strtoul(longest, NULL, 10) : MESSAGE_MAX;
	info->tx_attr->size = QUEUE;
	if (tclass && has_class("honour"))
		info->tx_attr->tclass = tclass;
	if (tclass && has_class("map"))
		info->tx_attr->tclass = FI_TC_BEST_EFFORT;
	info->rx_attr->size = QUEUE;
	info->domain_attr->name = strdup("device0");
	info->domain_attr->mr_mode = mode;
	info->domain_attr->threading = FI_THREAD_SAFE;
	info->fabric_attr->name = strdup("device");
	/* libfabric appends the layer's name. */
	if (is_verbs)
		info->fabric_attr->prov_name = strdup("verbs");
	*out = info;
	return 0;
}

static void cleanup(void)
{
}

static struct fi_provider provider = {
	.version = FI_VERSION(999, 0),
	.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.name = "psm3",
	.getinfo = getinfo,
	.fabric = fabric,
	.cleanup = cleanup,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	const char *role = getenv("MUSTER_TEST_PROVIDER");

	is_verbs = role && !strcmp(role, "verbs") && !PREFIX;
	is_cxi = role && !strcmp(role, "cxi");
	if (is_cxi)
		provider.name = "cxi";
	if (is_verbs)
		provider.name = "ofi_rxm";
	if (PREFIX)
		provider.name = "verbs";
	return &provider;
}
