# Process 1 of a training container: starts the container's own command, hands SIGTERM on, ends with the right code.
# `lightning-sm entrypoint` prints these lines without the comments; bash 4 and coreutils are all that they need.
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

# Sets REPLY to the parent of process $1. The name in parentheses, before it, may hold anything.
parent() {
  local line
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  line=(${line##*) })
  REPLY=${line[1]}
}

# Whether process $1 is one that mpirun or torchrun started, and has a handler.
is_rank() {
  catches "$1" && grep -qzE '^(OMPI_COMM_WORLD_RANK|TORCHELASTIC_RUN_ID)=' "/proc/$1/environ" 2>/dev/null
}

# Adds the ranks of this host to `found`, not what they started themselves. They are told past their launcher, because
# mpirun would kill them 1 second later and torchrun 30 seconds later, and the platform leaves them 120.
find_ranks() {
  local path
  for path in /proc/[0-9]*; do
    is_rank "${path#/proc/}" && parent "${path#/proc/}" && ! is_rank "$REPLY" && found+=("${path#/proc/}")
  done
}

# Adds to `found` what the toolkit started: descendants of process $1 below the toolkit itself and below any shell.
find_below() {
  local path process
  for path in /proc/[0-9]*; do
    process=${path#/proc/}
    parent "$process" && [ "$REPLY" = "$1" ] || continue
    case "$(cat "/proc/$process/comm" 2>/dev/null) $(readlink "/proc/$process/exe")" in
      sshd\ *) ;;
      train\ * | *\ */bash | *\ */dash | *\ */sh | *\ */busybox) catches "$process" && found+=("$process") || find_below "$process" ;;
      *) found+=("$process") ;;
    esac
  done
}

stop() {
  told=1
  [ -z "$stopped" ] || return
  stopped=1
  found=()
  find_ranks
  [ ${#found[@]} -gt 0 ] || find_below $$
  [ ${#found[@]} -gt 0 ] || found=("$child")
  echo "lightning-sm: SIGTERM is handed on to: ${found[*]}"
  kill -TERM "${found[@]}" 2>/dev/null
  # When they are gone, the toolkit of an mpirun job goes on waiting for its other hosts.
  (while kill -0 "${found[@]}"; do sleep 1; done; sleep 5; kill -KILL "$child") >/dev/null 2>&1 &
  watcher=$!
}

trap stop TERM
@COMMAND@ &
child=$!
while :; do
  told=
  wait "$child"
  code=$?
  [ -n "$told" ] || break
done
[ -z "$watcher" ] || kill "$watcher" 2>/dev/null
[ "$code" = 0 ] || [ -z "$stopped" ] || code=143
# The toolkit calls some failures a success: those of mpirun's other hosts, and aborts of gloo.
[ "$code" != 0 ] || [ ! -e "$base/output/failure" ] || code=1
exit "$code"
