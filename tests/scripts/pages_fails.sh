#!/bin/bash
# links.sh and pages.sh find what they are there to find: tests/scripts/pages_fails.sh TESSERA CC
#
# Planted faults, one a page, beside a page that is right.
# shellcheck disable=SC2016 # backquotes are Markdown's
set -u
root=$(realpath "$(dirname "$0")/../..") tessera=$(realpath "$1") compiler=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/docs/notes" "$work/src"
checks=0 failures=0

# says STATUS WORDS COMMAND...: the command ends so, and prints WORDS.
says() {
    checks=$((checks + 1))
    "${@:3}" >"$work/out" 2>&1
    local status=$?
    [ $status -eq "$1" ] && grep -qF -- "$2" "$work/out" && return
    failures=$((failures + 1))
    echo "FAILED: status $status, not $1 and '$2'"
    cat "$work/out"
}
# links STATUS WORDS TEXT: links.sh of a page with TEXT beside another one with headings.
links() {
    printf '# Notes\n\n## Two words: `more`\n\n- **In bold.** Text.\n' >"$work/docs/notes/other.md"
    printf '%s\n' "$3" >"$work/docs/page.md"
    says "$1" "$2" "$root/tests/scripts/links.sh" "$work"
}
links 0 '3 references' '# A, b

[o](notes/other.md), [o](notes/other.md#two-words-more), [here](#a-b), [far](https://example.org/x.md)'
links 1 'docs/page.md: no file docs/none.md' '[o](none.md)'
links 1 'no file notes/other.md' '[o](../notes/other.md)'
links 1 'has no heading for #two' '[o](notes/other.md#two)'
links 1 'docs/page.md has no heading for #b' '[o](#b)'
links 0 '4 references' '[o](notes/other.md), "Two words", and [o](notes/other.md), "In bold"'
links 1 'has no heading "Two wor"' '[o](notes/other.md), "Two wor"'
links 0 '1 references' '[o](notes/other.md)
```
[o](none.md)
```'
page=docs/notes/other.md
printf '/* As %s,\n * "Two words", has. */\n' "$page" >"$work/src/a.c"
links 0 '3 references' '[o](notes/other.md)'
printf '/* As %s, "Three\n * words", has. */\n' "$page" >"$work/src/a.c"
links 1 'src/a.c: docs/notes/other.md has no heading "Three words"' '[o](notes/other.md)'
printf '/* As %s has. */\n' "docs/none.md" >"$work/src/a.c"
links 1 'src/a.c: no file docs/none.md' '[o](notes/other.md)'

# tried STATUS WORDS TEXT: pages.sh of a page with TEXT.
tried() {
    printf '%s\n' "$3" >"$work/page.md"
    says "$1" "$2" "$root/tests/scripts/pages.sh" "$tessera" "$compiler" "$work/page.md"
}
tried 0 ' 0 not taken' 'Take `window(3,0)+causal` or `h=2,n=64,d=64,pattern=causal`, not `window(w,0)`.

```c
shape.n_q = n_q;
```'
tried 1 'window(3)' 'Take `window(3)`.'
tried 1 'each(3,4; window(3))' 'Take `each(3,4; window(3))`.'
tried 1 'h=3,hkv=2' 'Take `h=3,hkv=2`.'
tried 1 'n_keys' '```c
shape.n_keys = n_q;
```'
tried 2 'nothing to try' 'Take care.'

echo "pages_fails.sh: $checks checks, $failures failed"
[ "$failures" -eq 0 ]
