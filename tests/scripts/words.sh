#!/bin/sh
# Words of the house. A comment begins with its noun: none begins with Of, What, Where, The same, As, It, They, That
# or Those. `of`, `it`, `here` and `there` are no identifiers.
# Usage: tests/scripts/words.sh [ROOT]. Prints every offending line; exit 1 if there was any.
cd "${1:-$(dirname "$0")/../..}" || exit 2

swept='src include lab bench tools examples tests'

# words FILE...: offending lines. `inside`: a comment goes on; `bare`: its words begin on the next line; `line`: a
# comment of // that the next line may go on with.
words() {
    awk '
    function begins(text) {
        sub(/^[ \t*]+/, "", text)
        if (tolower(text) ~ /^(of|what|where|the same|as|it|they|that|those)([^a-z_0-9]|$)/)
            printf "%s:%d: %s\n", FILENAME, FNR, $0
    }
    FNR == 1 { inside = bare = line = 0 }
    {
        rest = $0
        code = ""
        if (bare) begins(rest)
        bare = 0
        was = line
        line = 0
        while (rest != "") {
            if (inside) {
                at = index(rest, "*/")
                if (!at) break
                rest = substr(rest, at + 2)
                inside = 0
            } else if (match(rest, /"([^"\\]|\\.)*"|\047([^\047\\]|\\.)+\047|\/\*|\/\//)) {
                mark = substr(rest, RSTART, 2)
                code = code substr(rest, 1, RSTART - 1) " "
                if (mark == "//") {
                    if (!was || code !~ /^[ \t]*$/) begins(substr(rest, RSTART + 2))
                    line = 1
                    break
                }
                rest = substr(rest, RSTART + (mark == "/*" ? 2 : RLENGTH))
                if (mark == "/*") {
                    inside = 1
                    if (rest ~ /^[ \t*]*$/) bare = 1
                    else begins(rest)
                }
            } else {
                code = code rest
                break
            }
        }
        if (code ~ /(^|[^A-Za-z_0-9])(of|it|here|there)([^A-Za-z_0-9]|$)/ && code !~ /^[ \t]*#[ \t]*(error|warning)/)
            printf "%s:%d: %s\n", FILENAME, FNR, $0
    }' "$@"
}

# The rules find what they are for, whatever awk this is.
planted=$(printf '%s\n' '/* Of these. */' '/*' ' * What' ' */' 'int of; /* the "of" */' '// One' '// of two' \
    'x = "/*"; // as' 'puts("of it"); /* A' 'of */' | words - | wc -l)
[ "$planted" -eq 4 ] || { echo "words.sh finds $planted of 4 planted words"; exit 1; }

for folder in $swept; do
    [ -e "$folder" ] || { echo "no folder: $folder"; exit 1; }
done
sources() {
    find "$@" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def'
}
# Word splitting is wanted: no name in this tree has a space.
# shellcheck disable=SC2086,SC2046
found=$(words $(sources $swept))
[ -z "$found" ] && { echo 'no words amiss'; exit 0; }
printf 'comments that do not begin with a noun, and identifiers that are none:\n%s\n' "$found"
exit 1
