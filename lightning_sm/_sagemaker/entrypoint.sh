# Process 1 of a training container: runs the container's own command, forwards SIGTERM, sets the exit code.
# `lightning-sm entrypoint` prints these lines without the comments. Requires bash 4 and coreutils.
unset IFS
base=${SAGEMAKER_BASE_DIR:-/opt/ml}
stopped=

# Whether process $1 has a handler for SIGTERM, which is number 15.
catches() {
  local key value
  while read -r key value; do
    [ "$key" = SigCgt: ] && return $((1 - (16#$value >> 14 & 1)))
  done 2>/dev/null <"/proc/$1/status"
  return 1
}

# Sets REPLY to the parent of process $1. The name in parentheses before it may contain any character.
parent() {
  local line
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  line=(${line##*) })
  REPLY=${line[1]}
}

# Whether process $1 is a descendant of this one, as every process of a container is.
is_ours() {
  local process=$1
  until [ "$process" = $$ ]; do
    parent "$process" && [ "$REPLY" -gt 0 ] || return 1
    process=$REPLY
  done
}

# Whether mpirun or torchrun started process $1 or one of its ancestors.
is_launched() {
  local variable
  while IFS= read -r -d '' variable; do
    # In a trap, `return` without a number returns the status from before the trap.
    case "$variable" in
      OMPI_COMM_WORLD_RANK=* | TORCHELASTIC_RUN_ID=*) is_ours "$1"; return $? ;;
    esac
  done 2>/dev/null <"/proc/$1/environ"
  return 1
}

is_rank() { is_launched "$1" && catches "$1"; }

# Adds the ranks of this host to `found`, without their child processes. They are signalled directly, because their
# launcher would kill them: mpirun after 1 second, torchrun after 30. SageMaker allows 120 seconds.
find_ranks() {
  local path
  for path in /proc/[0-9]*; do
    is_rank "${path#/proc/}" && parent "${path#/proc/}" && ! is_rank "$REPLY" && found+=("${path#/proc/}")
  done
}

# Adds process $1 to `found`. In the place of one without a handler for SIGTERM stand its child processes: those of the
# toolkit and of a shell, and of a program that starts the training, one of which has a handler.
find_program() {
  local path name count=${#found[@]}
  name="$(cat "/proc/$1/comm" 2>/dev/null) $(readlink "/proc/$1/exe")"
  case "$name" in sshd\ *) return ;; esac
  catches "$1" || for path in /proc/[0-9]*; do
    parent "${path#/proc/}" && [ "$REPLY" = "$1" ] && find_program "${path#/proc/}"
  done
  case "$name" in train\ * | *\ */bash | *\ */dash | *\ */sh | *\ */busybox) catches "$1" || return ;; esac
  for path in "${found[@]:count}"; do catches "$path" && return; done
  found=("${found[@]:0:count}" "$1")
}

stop() {
  signalled=1
  [ -z "$stopped" ] || return
  stopped=1
  found=()
  find_ranks
  [ ${#found[@]} -gt 0 ] || find_program "$child"
  [ ${#found[@]} -gt 0 ] || found=("$child")
  echo "lightning-sm: forwarding SIGTERM to: ${found[*]}"
  kill -TERM "${found[@]}" 2>/dev/null
  (while kill -0 "${found[@]}"; do sleep 1; done; sleep 5; kill -KILL "$child") >/dev/null 2>&1 &
  watchers+=($!)
}

anything_runs() {
  local path
  found=()
  find_program "$child"
  [ ${#found[@]} -eq 0 ] || return 0
  for path in /proc/[0-9]*; do
    is_launched "${path#/proc/}" && return 0
  done
  return 1
}

# When all programs have ended, the toolkit of an mpirun job waits for other hosts, for minutes if these failed. A job
# that is a script may start its next program meanwhile.
watch_for_failure() {
  while sleep 2; do
    has_failed && sleep 5 && has_failed && kill -KILL "$child"
  done
}

has_failed() { [ -e "$base/output/failure" ] && ! anything_runs; }

trap stop TERM
@COMMAND@ &
child=$!
watch_for_failure >/dev/null 2>&1 &
watchers=($!)
while :; do
  signalled=
  wait "$child"
  code=$?
  [ -n "$signalled" ] || break
done
kill "${watchers[@]}" 2>/dev/null
[ "$code" = 0 ] || [ -z "$stopped" ] || code=143
# The toolkit exits with 0 after some failures: those of other hosts of mpirun, and aborts of gloo.
[ "$code" != 0 ] || [ ! -e "$base/output/failure" ] || code=1
exit "$code"
