#!/usr/bin/env bash
# All checks, from a clean clone: tools/test.sh [--long]
#
# Installs missing packages when it may (root, or sudo without a password), else prints the line to
# type and stops. Needs neither nvcc nor a GPU. Each step prints its time; the last line counts.
# Logs stay in build/logs. --long: every CUDA kernel, sweeps at their full length and at every CPU level.
set -u
cd "$(dirname "$0")/.." || exit 2
long=
case ${1-} in
'') ;;
--long) long=1 ;;
*) echo 'usage: tools/test.sh [--long]' >&2 && exit 2 ;;
esac
. tools/scripts/packages.sh
packages_need gcc:gcc g++:g++ make:make cmake:cmake pkg-config:pkg-config libcmocka-dev libpng-dev \
    libjansson-dev gcovr:gcovr || exit 2
packages_need clang:clang libclang-rt-dev libomp-dev || echo 'going on without' >&2
packages_need gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc libc6-dev-arm64-cross qemu-user:qemu-aarch64 ||
    echo 'going on without' >&2
packages_need ccache:ccache doxygen:doxygen gnuplot-nox:gnuplot abigail-tools:abidiff libopenblas0-pthread \
    python3-numpy ||
    echo 'going on without' >&2
# What a build has compiled, another of the same flags need not: of this run, or of an earlier one.
! command -v ccache >/dev/null || export CMAKE_C_COMPILER_LAUNCHER=ccache

jobs=$(nproc)
logs=build/logs
mkdir -p "$logs"
rm -f "$logs"/*.counts "$logs"/*.log
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
export CTEST_OUTPUT_ON_FAILURE=1 CTEST_PARALLEL_LEVEL=$jobs
# Tests run with more threads than there are cores: those that wait should not spin.
export OMP_WAIT_POLICY=passive

# step NAME COMMAND...: runs it into build/logs/NAME.log and says how long it took. A step counts as
# one check; the tests of ctest and the cases of verify count each. Counts (passed, failed, skipped) are
# left in build/logs/NAME.counts.
step() {
    local name=$1 log=$logs/${1// /_}.log start=$SECONDS status counts skips
    shift
    "$@" >"$log" 2>&1 </dev/null
    status=$?
    counts=$(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+)$/\2 \1/p
        s/^verify: ([0-9]+) cases.* ([0-9]+) failed.*/\1 \2/p' "$log" | tail -n 1)
    [ -n "$counts" ] || counts="1 $((status != 0))"
    [ $status -eq 0 ] || [ "${counts#* }" -gt 0 ] || counts="$((${counts% *} + 1)) 1"
    skips=$(sed -nE 's/^[ 0-9]*\/[0-9]+ Test .*: ([a-z0-9_]+) \.+\*\*\*Skipped .*/\1/p' "$log")
    echo "$((${counts% *} - ${counts#* } - $(wc -w <<<"$skips"))) ${counts#* } $(wc -w <<<"$skips")" \
        >"${log%.log}.counts"
    {
        flock 9
        printf '%-36s %4d s  %s%s\n' "$name" $((SECONDS - start)) \
            "$([ $status -eq 0 ] && echo ok || echo "FAILED, see $log:")" "${skips:+, skipped: ${skips//$'\n'/ }}"
        [ $status -eq 0 ] || tail -n 60 "$log"
    } 9>"$logs/lock"
    return $status
}

# aside NAME COMMAND...: a step of one core, beside those that follow.
aside() {
    OMP_NUM_THREADS=1 step "$@" &
}

skip() {
    echo '0 0 1' >"$logs/${1// /_}.counts"
    printf '%-36s    -    skipped: %s\n' "$1" "$2"
}

# build PRESET [TARGET...]
build() {
    cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" ${2:+--target "${@:2}"}
}

# The README's first command: its whole answer on one screen.
demonstration() {
    tools/demo.sh >"$logs/demo.out" || return
    cat "$logs/demo.out"
    [ "$(wc -l <"$logs/demo.out")" -le 45 ]
}

# can_clang FLAG TEXT: whether clang is there, with its OpenMP runtime and what FLAG needs.
can_clang() {
    printf '%s\n' "$2" | clang -x c - -fopenmp "$1" -o "$logs/probe" >/dev/null 2>&1
}
needs='needs clang, its sanitizers and OpenMP (packages clang libclang-rt-dev libomp-dev)'

step 'demo, at most 45 lines' demonstration

# Times are compared here: nothing runs beside these tests.
if step 'build, warnings are errors' build ci; then
    step 'tests' ctest --preset ci ${long:+-C Long}
    aside 'verify against the oracle' build/ci/tessera verify --count "$([ -n "$long" ] && echo 3200 || echo 800)"
    aside 'verify lists on the device' build/ci/tessera verify --lists \
        --count "$([ -n "$long" ] && echo 2000 || echo 400)" --seed 2
fi

if command -v doxygen >/dev/null; then
    mkdir -p build/docs
    aside 'documentation, warnings are errors' doxygen docs/Doxyfile
else
    skip 'documentation' 'needs doxygen (package doxygen)'
fi

# The drawn cases of verify_teams and verify meet the kernels that gradients_cpu and modifiers sweep.
checks=asan${long:+-long} swept=(-E '^(gradients_cpu|modifiers)$')
[ -z "$long" ] || swept=()
if step 'build with ASan and UBSan' build "$checks"; then
    step 'tests with ASan and UBSan' ctest --preset "$checks" "${swept[@]}"
    aside 'verify with ASan and UBSan' "build/$checks/tessera" verify --quick
fi

if can_clang -fsanitize=fuzzer,address \
    'int LLVMFuzzerTestOneInput(const void *d, long n) { (void)d; (void)n; return 0; }'; then
    if step 'build fuzz targets' build fuzz fuzz; then
        for target in fuzz_lists fuzz_npy fuzz_safetensors; do
            mkdir -p "$logs/$target"
            aside "$target, 8 s" "build/fuzz/$target" -max_total_time=8 -rss_limit_mb=4096 -seed=1 \
                -artifact_prefix="$logs/" "$logs/$target"
        done
    fi
else
    skip 'fuzzing' "$needs"
fi

if can_clang -fsanitize=thread 'int main(void) { return 0; }'; then
    threaded=(lists plan pattern spec attention spmm properties run_promises)
    if step 'build with TSan' build tsan "${threaded[@]/#/test_}"; then
        step 'tests with TSan' ctest --preset tsan --no-tests=error -R "^($(IFS='|' && echo "${threaded[*]}"))\$"
    fi
else
    skip 'TSan' "$needs"
fi

# Counters are not atomic, which would take six times as long, so OpenMP has one thread here; an example that
# makes threads of its own may leave a line with a count below zero, which is passed over. run_promises repeats
# much and reaches no line that the others do not; lines that gradients_cpu and modifiers sweep are met by
# verify_teams. Headers of src/cpu are compiled once for each level: a line is met where one level meets it.
if step 'build for coverage' build coverage; then
    find build/coverage -name '*.gcda' -delete
    step 'tests for coverage' env OMP_THREAD_LIMIT=1 ctest --preset coverage \
        -E '^(run_promises|gradients_cpu|modifiers|threads)$'
    mkdir -p "$logs/demo"
    step 'demonstration for coverage' env OMP_THREAD_LIMIT=1 build/coverage/tessera_demo \
        examples/data/minilm.safetensors "$logs/demo"
    aside 'coverage at least 90 %' gcovr -r . -f '(src|lab|tools|bench)/.+\.c$' -f 'src/cpu/.+\.h$' \
        --gcov-ignore-parse-errors --fail-under-line 90 build/coverage
fi

# CUDA kernels: warnings and spills are errors, and the table tells what was compiled. Those of f16 are
# twins of those of bf16, from the same templates: --long compiles them too, and runs all tests.
nvcc=$(PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
if [ -n "$nvcc" ] && printf '12.5\n%s\n' "$nvcc" | sort -VC; then
    if [ -n "$long" ]; then
        step 'build CUDA kernels' build cuda-long && step 'tests with CUDA' ctest --preset cuda-long
    else
        step 'build CUDA kernels, but of f16' build cuda tessera tessera_static tessera_tool \
            test_cuda_table && step 'tests with CUDA' ctest --preset cuda --no-tests=error -R '^(cuda_table|symbols)$'
    fi
else
    skip 'CUDA kernels' 'needs nvcc 12.5 or later'
fi

wait
sed -n 's/^TOTAL/lines of src, lab, tools and bench, covered:/p' "$logs/coverage_at_least_90_%.log" 2>/dev/null
read -r passed failed skipped < <(cat "$logs"/*.counts |
    awk '{ p += $1; f += $2; s += $3 } END { print p, f, s }')
printf '%s s in all\n%d passed, %d failed, %d skipped\n' "$SECONDS" "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
