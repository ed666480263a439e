#!/bin/sh
# What launches of CUDA set of a function, context or module, all host threads share: device/launch.cuh alone sets it,
# from a template's constant. Kernels over filled lists, which start early, read nothing by the read-only path, nor
# does what reads modifiers, and include nothing of work/gather.cuh, which reads lists of the host. Usage: tests/scripts/launches.sh [ROOT]
# Prints every line that does otherwise; exit 1 if there is any. Without ROOT it also looks at copies that it
# has spoilt, and fails where these pass.
here=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
setters='(cuda|cu)(Func|Device|Ctx|Module|Kernel)[A-Za-z]*Set[A-Za-z]*|cudaSetDeviceFlags|cudaMemcpy[A-Za-z]*Symbol[A-Za-z]*'

# held ROOT
held() {
    sources=$(find "$1/src/cuda" -type f \( -name '*.[ch]' -o -name '*.cuh' -o -name '*.in' \))
    [ -n "$sources" ] || { echo 'no files: src/cuda'; return 2; }
    # shellcheck disable=SC2046,SC2086
    found=$(grep -nE '__ldg *\(|ld\.global\.nc|"work/gather\.cuh"' /dev/null \
        $(printf '%s\n' $sources | grep -E '/src/cuda/((decode|fill|work|forward/sm90/filled)/|device/modify\.cuh)' |
            grep -v '/work/gather\.cuh$'))
    [ -z "$found" ] || { printf 'read-only loads in kernels that start early:\n%s\n' "$found"; return 1; }
    launch=$1/src/cuda/device/launch.cuh
    # shellcheck disable=SC2086 # no name in this tree has a space
    found=$(grep -nE "\b($setters)\b *\(" /dev/null $sources | grep -v "^$launch:")
    [ -z "$found" ] || { printf 'state that launches share is set:\n%s\n' "$found"; return 1; }
    # Its function takes nothing but a kernel, and sets what its template says.
    tr -s ' \n' ' ' <"$launch" >"$scratch/launch"
    [ "$(grep -cE "\b($setters)\b *\(" "$launch")" = 1 ] &&
        grep -q 'template <int MOST> static inline cudaError_t launch_shared(const void \*kernel) {' "$scratch/launch" &&
        grep -q 'MaxDynamicSharedMemorySize, MOST < room ? MOST : room);' "$scratch/launch" && return
    echo "$launch: it does not set constants of the kernel alone"
    return 1
}

scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
held "${1:-$here}" || exit
[ $# = 0 ] || exit 0

# spoilt WHAT FILE SCRIPT: sed's SCRIPT makes FILE of a copy one that must be found.
spoilt() {
    rm -rf "$scratch/copy"
    mkdir -p "$scratch/copy/src"
    cp -r "$here/src/cuda" "$scratch/copy/src/cuda"
    sed -i "$3" "$scratch/copy/src/cuda/$2"
    ! cmp -s "$here/src/cuda/$2" "$scratch/copy/src/cuda/$2" || { echo "nothing spoilt: $1"; exit 2; }
    held "$scratch/copy" >/dev/null && { echo "not found: $1"; exit 1; }
    return 0
}
spoilt 'a limit of a plan' backward/kernel.cuh \
    's|launch_shared<.*>(\(.*\));|cudaFuncSetAttribute(\1, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);|'
spoilt 'an argument' device/launch.cuh 's|launch_shared(const void \*kernel)|launch_shared(const void *kernel, int most)|'
spoilt 'another number' device/launch.cuh 's|MOST < room ? MOST : room|room|'
spoilt 'a cache preference' host/device.c 's|^    cudaFree(memory);|    cudaDeviceSetCacheConfig(1);|'
spoilt 'lists of the host' decode/keys.cuh 's|work/views.cuh|work/gather.cuh|'
spoilt 'a read-only load' work/item.cuh 's|p\.lengths\[tile\.batch\]|__ldg(p.lengths + tile.batch)|'
