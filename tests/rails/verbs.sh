# Two hosts with two RoCE devices each, as two agents see them: the ends of two Ethernet cables. Both ends are in one
# network namespace, as the kernel's RoCE has no other; rules of routing send packets between them over the cables.
# Prints a line for each step with the time that it took, in milliseconds of the guest.

now() { echo $(($(date +%s%N) / 1000000)); }

# Waits until the log of agent $1 has a line that begins with $2, after the last line of the step before.
await() {
	end=$(($(now) + 120000))
	until tail -n "+$(($(cat "$1.seen") + 1))" "$1.log" | grep -q "^$2"; do
		if [ "$(now)" -gt "$end" ]; then
			echo "MISSING $net $name: no line \`$2\` in the log of $1"
			tail -n 20 a.log b.log
			exit 1
		fi
		sleep 0.02
	done
}

# Begins a step of this name.
begin() {
	name=$1
	for agent in a b; do wc -l <$agent.log >$agent.seen; done
	start=$(now)
}

end() { echo "STEP $net $name: $(($(now) - start)) ms"; }

agent() {
	# An emulated processor is slow: the long deadlines.
	"$musterd" --name "$1" --rail "10.9.0.$2:7700@${net}0" --rail "10.9.1.$2:7700@${net}1" \
		--seed "10.9.0.1:7700@${net}0,10.9.1.1:7700@${net}1" --profile quiet --print-events plain >>"$1.log" 2>&1 &
}

mkdir agents
umask 077
printf '%064d' 5 >key
# The standard input of ranks: it never ends.
mkfifo input
exec 3<>input

# Providers that find no device here take seconds to say so.
export FI_PROVIDER='^psm,psm2,psm3,efa,usnic,sockets'
for i in 0 1; do
	ip link add a$i type veth peer name b$i
	ip addr add 10.9.$i.1/32 dev a$i
	ip addr add 10.9.$i.2/32 dev b$i
	for end in a b; do
		echo 1 >/proc/sys/net/ipv4/conf/$end$i/accept_local
		echo 0 >/proc/sys/net/ipv4/conf/$end$i/rp_filter
	done
	ip rule add pref 1$i iif a$i lookup local
	ip rule add pref 2$i iif b$i lookup local
	ip rule add pref 3$i from 10.9.$i.1 to 10.9.$i.2 lookup 1$i
	ip rule add pref 4$i from 10.9.$i.2 to 10.9.$i.1 lookup 2$i
	ip link set a$i up
	ip link set b$i up
	ip route add 10.9.$i.2 dev a$i table 1$i
	ip route add 10.9.$i.1 dev b$i table 2$i
done
# Both ends of the cable $1 have a RoCE device.
add_devices() {
	for end in a b; do rdma link add rx$end$1 type rxe netdev $end$1; done
}

add_devices 0
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip rule add pref 100 lookup local
ip rule del pref 0

# The cable $1 has a carrier again, and the routes that the kernel deleted with it.
mend() {
	ip link set "b$1" up
	ip route replace "10.9.$1.2" dev "a$1" table "1$1"
	ip route replace "10.9.$1.1" dev "b$1" table "2$1"
}

# Sends what the ends of the cable 1 send to each other to nobody, though its links stay up.
cut() {
	ip neigh replace 10.9.1.2 lladdr 02:00:00:00:00:01 dev a1 nud permanent
	ip neigh replace 10.9.1.1 lladdr 02:00:00:00:00:01 dev b1 nud permanent
}

heal() {
	ip neigh del 10.9.1.2 dev a1
	ip neigh del 10.9.1.1 dev b1
}

# Whether the device $1 has a connection that it takes for a working one.
is_connected() { rdma resource show qp | grep "link $1/" | grep "type RC" | grep -q "state RTS"; }

# Waits until an end of the cable 1 has given up its connections, at most 20 s: one that carries nothing does not break,
# and is none the worse for the cut.
await_broken() {
	end=$(($(now) + 20000))
	while is_connected rxa1 && is_connected rxb1 && [ "$(now)" -lt "$end" ]; do sleep 0.1; done
}

# A rank of a job on the host $2, which is number $3 on the cables. It starts its own agent, which may take longer here
# than a rank waits: then the rank is started again, and finds it.
rank() {
	seeds="10.9.0.1:$port@${net}0,10.9.1.1:$port@${net}1 10.9.0.2:$port@${net}0,10.9.1.2:$port@${net}1"
	(
		for try in 1 2 3 4 5; do
			MUSTER_JOB="verbs-$net" MUSTER_NODE="$2" MUSTER_RANK="$1" MUSTER_DIR=/tmp/agents \
				MUSTER_RAILS="10.9.0.$3:$port@${net}0,10.9.1.$3:$port@${net}1" MUSTER_SEEDS="$seeds" \
				MUSTER_PROFILE=quiet MUSTER_KEY_FILE=/tmp/key MUSTER_AGENT="$musterd" "$rank" <&3 >>"$2.log" 2>&1
			[ $? = 3 ] || break
		done
	) &
}

# Kills rank $1.
kill_rank() {
	for process in /proc/[0-9]*; do
		if [ "$(readlink "$process/exe")" = "$rank" ] && tr '\0' '\n' <"$process/environ" | grep -qx "MUSTER_RANK=$1"; then
			kill -9 "${process#/proc/}"
		fi
	done
}

# Fails if a member was declared failed.
nobody_failed() {
	if grep "^DOWN" a.log b.log; then
		echo "FALSE $net $name: no member has failed"
		exit 1
	fi
}

# The devices of one cable come after the agents: these start degraded, and open the rails later. $libfabric finds such
# devices; that of the other steps is older.
if [ -n "$libfabric" ]; then
	net=o2ib
	export MUSTER_LIBFABRIC="$libfabric"
	: >a.log
	: >b.log
	begin without-device
	agent a 1
	first=$!
	agent b 2
	second=$!
	await a "DEGRADED b"
	await b "DEGRADED a"
	end

	begin late-device
	add_devices 1
	await a "RECOVERED b"
	await b "RECOVERED a"
	end
	nobody_failed

	# The kernel removes the device once all processes have closed it, and libfabric closes none before its end.
	begin device-removed
	rdma link del rxb1 &
	await a "DEGRADED b"
	await b "DEGRADED b"
	end
	nobody_failed
	kill -9 "$first" "$second"
	wait
	rdma link add rxb1 type rxe netdev b1
	unset MUSTER_LIBFABRIC
else
	add_devices 1
fi

for net in o2ib o2ud; do
	: >a.log
	: >b.log
	begin boot
	agent a 1
	first=$!
	await a READY
	agent b 2
	second=$!
	await a "UP b"
	await b "UP a"
	end

	begin port-down
	ip link set b1 down
	await a "DEGRADED b"
	end
	nobody_failed

	begin port-up
	mend 1
	await a "RECOVERED b"
	await b "RECOVERED a"
	end
	nobody_failed

	# The rail that was down carries everything now.
	begin other-port-down
	ip link set b0 down
	await a "DEGRADED b"
	await b "DEGRADED a"
	end
	nobody_failed
	begin other-port-up
	mend 0
	await a "RECOVERED b"
	await b "RECOVERED a"
	end
	nobody_failed

	# A failure between two switches: the connections break, and stay broken when the network works again. On o2ud the
	# heartbeats need none.
	if [ $net = o2ib ]; then
		begin cut
		cut
		await a "DEGRADED b"
		await b "DEGRADED a"
		await_broken
		end
		nobody_failed
		begin healed
		heal
		await a "RECOVERED b"
		await b "RECOVERED a"
		end
		nobody_failed
	fi

	begin killed
	kill -9 "$second"
	await a "DOWN b"
	end

	begin return
	agent b 2
	second=$!
	await a "UP b"
	await b "UP a"
	end

	begin both-ports-down
	ip link set b0 down
	ip link set b1 down
	await a "DOWN b"
	end

	# A process that ends while its port is down sends its last messages into it, and then rdma_rxe's queue pair of
	# the connection manager sends no more.
	mend 0
	mend 1
	kill -9 "$first" "$second"
	wait
done

# A job of two ranks, each with an agent of its own: a supervisor and a worker. Agents outlive their ranks for a while,
# so each job has its own ports.
port=7710
for net in o2ib o2ud; do
	: >a.log
	: >b.log
	begin job
	rank 0 a 1
	await a ATTACHED
	rank 1 b 2
	await b ATTACHED
	await a "EVENT RankUp node=b rank=1"
	end
	begin rank-killed
	kill_rank 1
	await a "EVENT RankFailed node=b rank=1"
	end
	kill_rank 0
	wait
	port=$((port + 10))
done
net=o2ib

# One way between the same devices, beside libfabric's own program, which looks its way up without a source address.
begin latency
ip rule add pref 50 iif lo to 10.9.0.2 lookup 10
ip rule add pref 51 iif lo to 10.9.0.1 lookup 20
ip route replace 10.9.0.2 dev a0 src 10.9.0.1 table 10
ip route replace 10.9.0.1 dev b0 src 10.9.0.2 table 20
# It has a completion queue for all members of the universe, and these devices have small ones.
pingpong() { FI_UNIVERSE_SIZE=16 timeout 60 fi_pingpong -p 'verbs;ofi_rxm' -e rdm -I 500 -S 128 "$@"; }
pingpong -d rxb0 >server.log 2>&1 &
server=$!
# The server has no sign that it listens.
for try in 1 2 3 4 5 6 7 8 9 10; do
	sleep 0.5
	pingpong -d rxa0 127.0.0.1 >client.log 2>&1 && break
done
wait $server
theirs=$(awk 'END { print $7 }' client.log)
ours=$("$lab" bench rails --between "10.9.0.1:7720@${net}0,10.9.0.2:7720@${net}0" --turns 3 --rounds 500 |
	sed -n 's/.*p50 \([0-9.]*\) us.*/\1/p')
case "$ours-$theirs" in
[0-9]*-[0-9]*) ;;
*)
	echo "MISSING $net $name: no figure of muster-lab ($ours) or of fi_pingpong ($theirs)"
	cat server.log client.log
	exit 1
	;;
esac
echo "LATENCY $net: $ours us one way, fi_pingpong $theirs us, ratio $(awk "BEGIN { print $ours / $theirs }")"
end
