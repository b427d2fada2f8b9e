# shellcheck shell=bash disable=SC2034,SC2015 # names are for those that source it
# What prolog, epilog and task_prolog know of a job, and of this site. Sourced by them.
#
# A job asks for a formation in its comment: bivouac [WORD=VALUE]..., up to the end or a semicolon. docs/slurm.md has the
# words. Nothing of it is ever run: values are compared, or handed on as one argument.

umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# What a site may choose otherwise, in bivouac.conf beside these scripts, or in /etc/bivouac/slurm.conf.
BIVOUAC=$(command -v bivouac || echo /usr/bin/bivouac)
KEY=/etc/munge/munge.key # what all nodes have and no user can read
DISK=                    # directory on a local disk, for volume=disk
VOLUME=memory            # memory or disk, for jobs that do not say
SECURE=no                # yes or no, for jobs that do not say: whether all between their nodes is encrypted
PORT_FIRST=20000         # nodes of a job meet at a port from here on …
PORTS=10000              # … and so many further
START_LIMIT=60           # seconds until all nodes have to be there
DRAIN_LIMIT=600          # seconds for outputs to come out after the job
LOOK_LIMIT=120           # seconds to see what is not out, and to take the file system down
UNSAVED=drain            # what did not come out: drain (keep it, drain the nodes), keep (and use the nodes), discard
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
for conf in /etc/bivouac/slurm.conf "$here/bivouac.conf"; do
    # shellcheck source=/dev/null
    if [ -r "$conf" ]; then . "$conf"; fi
done

place=/run/bivouac/$SLURM_JOB_ID # root's, with run/ and mnt/ in it, which are the user's
name=job-$SLURM_JOB_ID
whole=$place/run/bivouac/$name+hosts # on the node that gathers the others only
part=$place/run/bivouac/$name

# Runs a command as the job's user, where the job was submitted, with nothing of root's environment.
as_user() {
    local home
    home=$(getent passwd "$SLURM_JOB_UID" | cut -d: -f6)
    # shellcheck disable=SC2016 # the inner shell's own
    setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_GID" --init-groups --inh-caps=-all \
        env -i PATH="$PATH" HOME="${home:-/}" USER="$SLURM_JOB_USER" LOGNAME="$SLURM_JOB_USER" \
        SLURMD_NODENAME="$SLURMD_NODENAME" BIVOUAC_RUNTIME_DIR="$place/run" \
        sh -c 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"' sh "$SLURM_JOB_WORK_DIR" "$@" </dev/null
}

# For the administrator in the system's log, and for the user beside the job's output.
tell() {
    logger -t bivouac -- "job $SLURM_JOB_ID, $SLURMD_NODENAME: ${1%%$'\n'*}" 2>/dev/null
    # shellcheck disable=SC2016
    as_user sh -c 'printf "%s\n" "$1" >>"bivouac-$2.txt"' sh "$SLURMD_NODENAME: $1" "$SLURM_JOB_ID" 2>/dev/null ||
        logger -t bivouac -- "job $SLURM_JOB_ID: $SLURM_JOB_WORK_DIR/bivouac-$SLURM_JOB_ID.txt cannot be written" 2>/dev/null
}

# Whether this node is the one that gathers the others: the first, where the batch script runs.
is_first() {
    local first
    read -r first < <(scontrol show hostnames "$SLURM_NODELIST")
    [ "$first" = "$SLURMD_NODENAME" ]
}

# %j is the job's number, %u its user, %XX the byte with that hexadecimal number, %% a percent sign.
decode() {
    local rest=$1 byte
    REPLY=
    while [[ $rest == *%* ]]; do
        REPLY+=${rest%%\%*}
        rest=${rest#*%}
        case $rest in
            j*) REPLY+=$SLURM_JOB_ID rest=${rest:1} ;;
            u*) REPLY+=$SLURM_JOB_USER rest=${rest:1} ;;
            %*) REPLY+=% rest=${rest:1} ;;
            00*) return 1 ;;
            [0-9A-Fa-f][0-9A-Fa-f]*)
                printf -v byte %b "\\x${rest:0:2}"
                REPLY+=$byte rest=${rest:2}
                ;;
            *) return 1 ;;
        esac
    done
    REPLY+=$rest
}

# SRC:DST, decoded, as two lines of the array PAIR; without :DST the last name of SRC, if that is allowed.
split() {
    local src=${1%%:*} dst=
    [[ $1 != *:* ]] || dst=${1#*:}
    [ -n "$src" ] || return 1
    decode "$src" || return 1
    src=$REPLY
    decode "$dst" || return 1
    dst=${REPLY:-$(basename -- "$src")}
    PAIR=("$src" "$dst")
}

# Reads the words of the comment into options (of `up`), mount, capacity, volume, secure, inputs and outputs; what makes no
# sense into trouble. Fails if the job wants no formation.
read_wishes() {
    local words word value
    options=() mount=$place/mnt capacity='' volume=$VOLUME secure=$SECURE inputs=() outputs=() trouble=
    [[ ${SLURM_JOB_COMMENT:-} =~ (^|\;[[:space:]]*)bivouac([[:space:]]+([^;]*))?(\;|$) ]] || return 1
    read -ra words <<<"${BASH_REMATCH[3]}"
    for word in "${words[@]}"; do
        value=${word#*=}
        case $word in
            capacity=[0-9]*) capacity=$value ;;
            pool=bivouac) ;; # what burst_buffer.lua cannot do without
            volume=memory | volume=disk) volume=$value ;;
            secure=yes | secure=no) secure=$value ;;
            mount=/*) decode "$value" && mount=$REPLY || trouble=$word ;;
            nodes_per_host=[1-9]*) options+=(--nodes-per-host "$value") ;;
            stripe=[0-9]*) options+=(--stripe "$value") ;;
            width=[0-9]*) options+=(--width "$value") ;;
            stage_in=?*) split "$value" && inputs+=("${PAIR[@]}") || trouble=$word ;;
            stage_out=?*:?*) split "$value" && outputs+=("${PAIR[@]}") || trouble=$word ;;
            *) trouble=$word ;;
        esac
    done
    if [ "$secure" = yes ]; then options+=(--secure); fi
    if [ "$volume" = disk ] && [ -z "$DISK" ]; then trouble=volume=disk; fi
}
