# Functions of the scripts that drive the tessera program, sourced with its path in $1: these work
# in a folder of their own with a folder `out`, and count checks and failures.
# shellcheck disable=SC2015
# shellcheck shell=bash
set -u
tessera=$(realpath "$1")
built=$(dirname "$tessera")
make_files=$built/make_files
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
mkdir out
export OMP_NUM_THREADS=2
checks=0 failures=0

fail() {
    failures=$((failures + 1))
    echo "FAILED: $1"
    sed 's/^/    /' err
}

# refused WORDS ARGUMENTS...: the line on stderr must hold WORDS.
refused() {
    local words=$1
    shift
    checks=$((checks + 1))
    local before
    before=$(ls -A out)
    "$tessera" "$@" >std 2>err
    local status=$?
    if [ $status -ne 2 ]; then
        fail "status $status: $*"
    elif [ "$(wc -l <err)" -ne 1 ]; then
        fail "not one line on stderr: $*"
    elif ! grep -q '^tessera: ' err || ! grep -qF -- "$words" err; then
        fail "the line does not say '$words': $*"
    elif [ "$(ls -A out)" != "$before" ]; then
        fail "left $(ls -A out): $*"
    fi
}

# good ARGUMENTS...: what it printed is left in the file std. A slow verify may tell its progress.
good() {
    checks=$((checks + 1))
    "$tessera" "$@" >std 2>err
    local status=$?
    if [ $status -ne 0 ] || grep -qvE '^verify: [0-9]+ of [0-9]+ cases, ' err; then
        fail "status $status: $*"
    fi
}

# ends STATUS ARGUMENTS...: what it printed is left in the files std and err.
ends() {
    local wanted=$1
    shift
    checks=$((checks + 1))
    "$tessera" "$@" >std 2>err
    local status=$?
    [ $status -eq "$wanted" ] || fail "status $status: $*"
}

same() {
    checks=$((checks + 1))
    "$make_files" "$1" "$2" "$3" 2>err || fail "same $*"
}

differ() {
    checks=$((checks + 1))
    "$make_files" "$1" "$2" "$3" >err 2>&1
    [ $? -eq 1 ] || fail "differ $*"
}

# shows WANTED COMMAND...: what the command prints is in the file WANTED.
shows() {
    local wanted=$1
    shift
    checks=$((checks + 1))
    "$@" >shown 2>err && diff "$wanted" shown >err || fail "shows $wanted: $*"
}

says() {
    checks=$((checks + 1))
    grep -qF -- "$1" std || { cp std err; fail "'$1' was not printed"; }
}

