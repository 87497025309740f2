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

# Whether process $1 belongs to this container, which is no question where this is process 1.
is_ours() {
  local process=$1
  until [ "$process" = $$ ]; do
    parent "$process" && [ "$REPLY" -gt 0 ] || return 1
    process=$REPLY
  done
}

# Whether mpirun or torchrun started process $1, or one above it.
is_launched() {
  local variable
  while IFS= read -r -d '' variable; do
    # In a trap, a return without a number means the number from before the trap.
    case "$variable" in
      OMPI_COMM_WORLD_RANK=* | TORCHELASTIC_RUN_ID=*) is_ours "$1"; return $? ;;
    esac
  done 2>/dev/null <"/proc/$1/environ"
  return 1
}

is_rank() { is_launched "$1" && catches "$1"; }

# Adds the ranks of this host to `found`, not what they started themselves. They are told past their launcher, because
# mpirun would kill them 1 second later and torchrun 30 seconds later, and the platform leaves them 120.
find_ranks() {
  local path
  for path in /proc/[0-9]*; do
    is_rank "${path#/proc/}" && parent "${path#/proc/}" && ! is_rank "$REPLY" && found+=("${path#/proc/}")
  done
}

# Adds process $1 to `found`. In place of the toolkit, or of a shell that would die of it, adds what runs below.
find_program() {
  local path
  case "$(cat "/proc/$1/comm" 2>/dev/null) $(readlink "/proc/$1/exe")" in
    sshd\ *) return ;;
    train\ * | *\ */bash | *\ */dash | *\ */sh | *\ */busybox) catches "$1" || set -- "$1" below ;;
  esac
  [ -n "$2" ] || { found+=("$1"); return; }
  for path in /proc/[0-9]*; do
    parent "${path#/proc/}" && [ "$REPLY" = "$1" ] && find_program "${path#/proc/}"
  done
}

stop() {
  told=1
  [ -z "$stopped" ] || return
  stopped=1
  found=()
  find_ranks
  [ ${#found[@]} -gt 0 ] || find_program "$child"
  [ ${#found[@]} -gt 0 ] || found=("$child")
  echo "lightning-sm: SIGTERM is handed on to: ${found[*]}"
  kill -TERM "${found[@]}" 2>/dev/null
  (while kill -0 "${found[@]}"; do sleep 1; done; end_toolkit) >/dev/null 2>&1 &
  watchers+=($!)
}

# When all programs are gone, the toolkit of an mpirun job still waits for other hosts, for minutes if these failed.
end_toolkit() {
  sleep 5
  kill -KILL "$child"
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

watch_for_failure() {
  until [ -e "$base/output/failure" ]; do sleep 2; done
  while anything_runs; do sleep 1; done
  end_toolkit
}

trap stop TERM
@COMMAND@ &
child=$!
watch_for_failure >/dev/null 2>&1 &
watchers=($!)
while :; do
  told=
  wait "$child"
  code=$?
  [ -n "$told" ] || break
done
kill "${watchers[@]}" 2>/dev/null
[ "$code" = 0 ] || [ -z "$stopped" ] || code=143
# The toolkit calls some failures a success: those of mpirun's other hosts, and aborts of gloo.
[ "$code" != 0 ] || [ ! -e "$base/output/failure" ] || code=1
exit "$code"
