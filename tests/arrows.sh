#!/bin/sh
# Greps for what the house forbids (ARCHITECTURE.md, "Arrows"). Usage: tests/arrows.sh [ROOT]
# Prints every offending line; exit 1 if there was any.
cd "${1:-$(dirname "$0")/..}" || exit 2
failed=0

# forbid WHAT REGEX FILES...: no line of FILES may match.
forbid() {
    what=$1 regex=$2
    shift 2
    found=$(grep -nE "$regex" /dev/null "$@" 2>/dev/null)
    [ -z "$found" ] && return
    printf 'forbidden, %s:\n%s\n' "$what" "$found"
    failed=1
}

# all DIRECTORY...: the C and CUDA sources below, except those named by $skip.
all() {
    find "$@" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) \
        ! -path "${skip:-none}"
}
include='^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]'

# headers ROOM [OTHER...]: the names of a room's own headers, less those that the others have too,
# as one regular expression.
headers() {
    room=$1
    shift
    find "$room" -maxdepth "${depth:-1}" -name '*.h' | while read -r header; do
        name=${header##*/}
        [ -n "$(find /dev/null "$@" -name "$name" 2>/dev/null)" ] || printf '%s\n' "$name"
    done | sed 's/\./\\./' | paste -sd '|'
}

# Word splitting of the file lists is wanted: no name in this tree has a space.
# shellcheck disable=SC2046
{
    forbid 'cpu knows cuda' "$include.*cuda" $(all src/cpu)
    forbid 'cuda knows cpu' "$include(.*/)?($(depth=2 headers src/cpu src/cuda))" $(all src/cuda)
    forbid 'the hall knows a backend' "$include(.*/)?(cpu|cuda|simd)[/_]" $(find src -maxdepth 1 -name '*.[ch]')
    forbid 'include knows src' "$include(\.\.|src/|$(headers src))" $(all include)
    forbid 'include knows CUDA' "$include.*cuda" $(all include)
    forbid 'src knows tests, tools or bench' "$include(.*/)?(lab|tests|tools|bench|cmocka)[/.]" $(all src)
    forbid 'the lab knows src' "$include(.*/src/|src/|$(headers src tests/lab))" $(all tests/lab)
    forbid 'bench or tools know src' "$include(.*/src/|src/|$(headers src bench tools tests/lab))" $(all bench tools)
    forbid 'examples know more than the header and libc' "$include(\.\.|src/|tests/|lab/|tools/)" $(all examples)

    skip=src/backend.c # include guards end in H; architecture.cuh asks which CUDA, not whether
    forbid 'a test for CUDA outside src/backend.c' \
        '^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif).*(CUDA|NVCC)(.*[^H])?$' \
        $(all src include | grep -v '/device/architecture.cuh$')
    skip='tests/lab/device_*'
    forbid 'CUDA outside src/cuda, bench/cuda and the lab'"'"'s device' \
        "$include.*(cuda_|cublas|cusparse)" $(all tests tools examples) \
        $(skip='bench/cuda/*' && all bench)
    skip=src/cpu/kernels_cpu.c
    forbid 'getenv outside the table of CPU levels' '(^|[^a-z_])(secure_)?getenv[[:space:]]*\(' $(all src)
    skip=
    forbid 'printing, ending or asserting in the library' \
        '(^|[^a-z_])(printf|fprintf|vprintf|vfprintf|puts|putchar|fputs|perror|exit|_exit|abort|assert|raise)[[:space:]]*\(' \
        $(all src)
    forbid 'strdup and other allocations that the tests cannot fail' \
        '(^|[^a-z_])(strdup|strndup|asprintf|vasprintf|posix_memalign|memalign|valloc|alloca)[[:space:]]*\(' \
        $(all src)
    forbid 'unfinished work' 'TODO|FIXME' $(all src include tests tools bench examples)
}
[ $failed -eq 0 ] && echo 'no forbidden arrows'
exit $failed
