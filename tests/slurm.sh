#!/bin/bash
# A private Slurm of two nodes on this machine for one command: tests/slurm.sh COMMAND ARGUMENT...
# Needs root and Debian's slurm-wlm and munge. It takes free ports, lives in a temp folder, and is gone when the command ends.
set -eu
if [ $# -eq 0 ]; then
    echo "usage: tests/slurm.sh COMMAND ARGUMENT..." >&2
    exit 2
fi
[ "$(id -u)" = 0 ] || { echo "tests/slurm.sh needs root: slurmd starts steps as their user" >&2; exit 2; }
folder=$(mktemp -d /tmp/slurm.XXXXXX)
daemons=()
command=

stop() {
    [ -z "$command" ] || kill "$command" 2>/dev/null || true
    scancel --full --state=RUNNING --user=root 2>/dev/null || true
    # The last started goes first: nodes, then the controller, then munge.
    for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
        kill "${daemons[i]}" 2>/dev/null || true
        wait "${daemons[i]}" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 143' TERM INT HUP

start() { # NAME COMMAND...: a daemon with its own log, which ends with this script even if that is killed
    local name=$1
    shift
    setpriv --pdeathsig KILL "$@" >"$folder/$name.out" 2>&1 &
    daemons+=($!)
}

until_true() { # COMMAND...: ask at most 300 times; a daemon that has gone ends the wait
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        for pid in "${daemons[@]}"; do
            kill -0 "$pid" 2>/dev/null || break 2
        done
        sleep 0.1
    done
    echo "tests/slurm.sh: no answer to: $*" >&2
    tail -n 5 "$folder"/*.out "$folder"/*.log >&2 || true
    exit 1
}

ports=($(python3 - <<'PYTHON'
import socket
taken = [socket.socket() for _ in range(3)]
for one in taken:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in taken))
PYTHON
))

host=$(hostname -s)
cores=$(nproc)
chmod 755 "$folder"
mkdir -m 755 "$folder/munge" "$folder/state" "$folder/spool"
head -c 1024 /dev/urandom >"$folder/munge/key"
chmod 600 "$folder/munge/key"
socket=$folder/munge/socket
cat >"$folder/slurm.conf" <<CONF
ClusterName=worldsize
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=$cores State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=$cores State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 MaxTime=10 State=UP
CONF
export SLURM_CONF=$folder/slurm.conf

start munged munged --foreground --force --key-file="$folder/munge/key" --socket="$socket" --num-threads=1 \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
until_true munge --socket="$socket" --no-input
start slurmctld slurmctld -D -i
until_true scontrol ping
start n1 slurmd -D -N n1
start n2 slurmd -D -N n2
ready() { [ "$(sinfo --noheader --Node --states=idle --format=%N | wc -l)" = 2 ]; }
until_true ready

# In the background, so that a signal to this script is heard at once.
setpriv --pdeathsig TERM "$@" <&0 &
command=$!
status=0
wait "$command" || status=$?
exit "$status"
