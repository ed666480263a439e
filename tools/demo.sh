#!/usr/bin/env bash
# The first command of README.md: builds Tessera and shows on one screen what sparse attention gives
# and costs, on real text. Needs neither nvcc nor a GPU: CUDA is built only where a GPU is seen. The
# program stays in build/demo, results in build/demo/out.
set -euo pipefail
cd "$(dirname "$0")/.."

. tools/scripts/packages.sh
packages_need gcc:cc libc6-dev make:make cmake:cmake pkg-config:pkg-config libpng-dev \
    libjansson-dev || exit

build=build/demo
out=$build/out
log=$build/build.log
data=examples/data/minilm.safetensors
tessera=$build/tessera
mkdir -p "$out"

cuda=OFF
if [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]] || compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    cuda=AUTO
fi
echo "building in $build, log in $log" >&2
if ! { cmake --preset demo -DTESSERA_CUDA=$cuda &&
    cmake --build --preset demo --parallel "$(nproc)"; } \
    >"$log" 2>&1; then
    cat "$log" >&2
    echo "tools/demo.sh: the build failed, see above" >&2
    exit 1
fi

"$build/tessera_demo" "$data" "$out"

# Pictures, drawn by the program itself.
picture() {
    "$tessera" pattern --block 32x32 --n 512 --png "$out/$1.png" --svg "$out/$1.svg" "${@:2}" \
        >>"$log"
}
picture pattern --pattern 'longformer(64,16)'
picture top_blocks --lists "$out/top_blocks.safetensors" --heads 12 --head 4

cat <<END

In $out: both patterns as pattern.{png,svg} and top_blocks.{png,svg}, the outputs as
o.safetensors, the chosen lists as top_blocks.safetensors. On files of your own:
  $tessera run --q F.safetensors:q --k F.safetensors:k --v F.safetensors:v \\
      --pattern 'longformer(64,16)' --out O.safetensors
END
