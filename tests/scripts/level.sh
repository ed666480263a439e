#!/bin/sh
# Tests at one CPU level. Exit 77 where the machine lacks it; the level that the machine chooses itself is
# that of the tests' own runs. Usage, from the root: tests/scripts/level.sh LEVEL BUILD NAME...
level=$1 build=$2
shift 2
isa() {
    "$build/tessera" info | sed -n 's/^isa  *//p'
}
own=$(unset TESSERA_ISA; isa)
[ -n "$own" ] || { echo "$build/tessera does not tell its level"; exit 1; }
if [ "$own" = "$level" ]; then
    echo "tests run at $level without being told"
    exit 0
fi
export TESSERA_ISA="$level"
[ "$(isa)" = "$level" ] || { echo "skipped: this machine runs no kernel of $level"; exit 77; }
[ $# -gt 0 ] || { echo 'no tests'; exit 1; }
log=$(mktemp) && trap 'rm -f "$log"' EXIT || exit 2
failed=0
for name; do
    "$build/test_$name" >"$log" 2>&1 && continue
    cat "$log"
    echo "FAILED: TESSERA_ISA=$level test_$name"
    failed=1
done
exit $failed
