#!/bin/sh
# Greps for what the house forbids (ARCHITECTURE.md, "Arrows"). Usage: tests/scripts/arrows.sh [ROOT]
# Prints every offending line; exit 1 if there was any.
cd "${1:-$(dirname "$0")/../..}" || exit 2
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

# empty WHAT: a list that should name files names none, which would make its rule say yes to anything.
empty() {
    printf 'no files: %s\n' "$1"
    failed=1
}

# all DIRECTORY...: the C and CUDA sources below, except those named by $skip.
all() {
    find "$@" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) \
        ! -path "${skip:-none}"
}
include='^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]'

# Folders of kernels, which know none but themselves: all of src/cuda but those that these stand on; and of the
# forward, its families.
kernels=$(cd src/cuda && find . -mindepth 1 -maxdepth 1 -type d ! -name device ! -name work ! -name host ! -name lists |
    sed 's|^\./||' | sort)
families=$(cd src/cuda/forward && find . -mindepth 1 -maxdepth 1 -type d | sed 's|^\./||' | sort)
[ -n "$kernels" ] || empty 'folders of kernels'
[ -n "$families" ] || empty 'families of the forward'
# alternatives WORDS...: as a regular expression.
alternatives() {
    printf '%s\n' "$@" | paste -sd '|'
}

# Every list of files that the rules below are about has some.
# shellcheck disable=SC2086
for room in src src/base src/pattern src/lists src/plan src/cpu src/cuda include lab tests bench tools examples \
    $(printf 'src/cuda/%s ' device work host lists $kernels) $(printf 'src/cuda/forward/%s ' $families); do
    [ -n "$(all "$room" 2>/dev/null)" ] || empty "$room"
done

# paths ROOM: headers below it, as they are included, as one regular expression.
paths() {
    list=$(cd "$1" && find . -name '*.h' -o -name '*.cuh' | sed 's|^\./||; s/\./\\./g' | paste -sd '|')
    [ -n "$list" ] || empty "headers of $1" >&2
    printf '%s' "${list:-$^}"
}

# Word splitting of the file lists is wanted: no name in this tree has a space.
# shellcheck disable=SC2046,SC2086
{
    core=$(all src/base src/pattern src/lists src/plan src/*.[ch])
    forbid 'cpu knows cuda' "$include.*cuda" $(all src/cpu)
    forbid 'cpu knows cuda' "$include(.*/)?($(paths src/cuda))\"" $(all src/cpu)
    forbid 'cuda knows cpu' "$include(.*/)?($(paths src/cpu))\"" $(all src/cuda)
    any=$(alternatives $kernels)
    forbid 'primitives of the device know a pipeline' \
        "$include(.*/)?($any|work|lists|plan|host/(staged|forward|backward|decode|fill|launch|table))[/.]" \
        $(all src/cuda/device)
    forbid "work knows kernels" "$include(.*/)?($any)/" $(all src/cuda/work)
    forbid 'the host knows kernels' "$include(.*/)?($any|device)/" $(all src/cuda/host)
    forbid "CUDA's lists know who walks them" "$include(.*/)?($any|device|work|host)/" $(all src/cuda/lists)
    for room in $kernels; do
        others=$(alternatives $(printf '%s\n' $kernels | grep -vx "$room"))
        forbid "kernels of $room know others" "$include(.*/)?($others)/" $(all src/cuda/$room)
    done
    for room in $families; do
        others=$(alternatives $(printf '%s\n' $families | grep -vx "$room"))
        forbid "the forward's $room knows others" "$include(.*/)?forward/($others)/" $(all src/cuda/forward/$room)
    done
    forbid 'kernels know a variant of theirs' "$include(.*/)?(forward/sm90/filled|decode/sm90)/" \
        $(find src/cuda/forward src/cuda/decode -name '*.cuh' ! -path '*/filled/*' ! -path '*/decode/sm90/*')
    forbid 'the core knows a backend' \
        "$include(.*/)?(cpu[/_.]|cuda[/_]|$(paths src/cpu)|$(paths src/cuda))" $core
    forbid 'base knows the rest of the core' "$include(pattern|lists|plan)/" $(all src/base)
    forbid 'patterns know lists or plans' "$include(lists|plan)/" $(all src/pattern)
    forbid 'lists know plans' "$include""plan/" $(all src/lists)
    forbid "a GPU's name or number in plans or lists" \
        '[Hh]opper|[Aa]mpere|[Bb]lackwell|(^|[^[:alnum:]])([ABHabh][1-9]00|(SM|sm)_?[0-9]{2,3})([^[:alnum:]]|$)' \
        $(all src/plan src/lists)
    forbid 'include knows src' "$include(\.\.|src/|$(paths src))" $(all include)
    forbid 'include knows CUDA' "$include.*cuda" $(all include)
    forbid 'src knows lab, tests, tools or bench' "$include(.*/)?(lab|tests|tools|bench|cmocka)[/.]" $(all src)
    # ROOM knows no folder of it that comes later in FOLDERS, which are all that it has.
    ordered() {
        room=$1 later=$2
        [ "$(find "$room" -name "*.c" | cut -d/ -f2 | sort -u)" = "$(printf '%s\n' $2 | sort)" ] || empty "$room: folders are not $2"
        for folder in $2; do
            later=${later#"$folder"} later=${later# }
            [ -z "$later" ] || forbid "$room/$folder knows a later folder of $room" \
                "$include($room/)?($(echo "$later" | tr ' ' '|'))/" $(all "$room/$folder")
        done
    }
    ordered bench 'baselines measure run'
    ordered lab 'case files device fill memory oracle lists run check'
    forbid 'the lab knows src' "$include(.*/src/|src/|$(paths src))" $(all lab)
    forbid 'bench or tools know src' "$include(.*/src/|src/|$(paths src))" $(all bench tools)
    forbid 'the Python package knows more than the shared library and packages of callers' \
        '^[[:space:]]*(import|from)[[:space:]]+(bench|lab|tests|tools|examples|subprocess|cffi)([ .]|$)' python/tessera/*.py
    forbid 'examples know more than the header and libc' "$include(\.\.|src/|tests/|lab/|tools/)" $(all examples)

    skip=src/plan/backend.c # include guards end in H; architecture.cuh asks which CUDA, not whether
    forbid 'a test for CUDA outside src/plan/backend.c' \
        '^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif).*(CUDA|NVCC)(.*[^H])?$' \
        $(all src include | grep -v '/device/architecture.cuh$')
    forbid 'a backend that planning asks for by name' '[!=]= *TESS_(CPU|CUDA)[^_A-Z]' $(all src/plan)
    skip=
    forbid 'CUDA outside src/cuda, the baselines of bench, the device of the lab and its example' \
        "$include.*(cuda_|cublas|cusparse)" $(all tests tools) \
        $(all lab | grep -v '^lab/device/\(cuda\.c\|flush\.\(h\|cu\)\)$') \
        $(all examples | grep -vE '/(either\.h|offload\.c)$') $(all bench | grep -v '\.cu$')
    skip=src/cpu/table.c
    forbid 'getenv outside the table of CPU levels' '(^|[^a-z_])(secure_)?getenv[[:space:]]*\(' $(all src)
    skip=
    forbid 'printing, ending or asserting in the library' \
        '(^|[^a-z_])(printf|fprintf|vprintf|vfprintf|puts|putchar|fputs|perror|exit|_exit|abort|assert|raise)[[:space:]]*\(' \
        $(all src)
    forbid 'strdup and other allocations that the tests cannot fail' \
        '(^|[^a-z_])(strdup|strndup|asprintf|vasprintf|posix_memalign|memalign|valloc|alloca)[[:space:]]*\(' \
        $(all src)
    forbid 'unfinished work' 'TODO|FIXME' $(all src include lab tests tools bench examples)
}
[ $failed -eq 0 ] && echo 'no forbidden arrows'
exit $failed
