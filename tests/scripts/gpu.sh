#!/usr/bin/env bash
# shellcheck disable=SC2054,SC2206 # cases are words with commas
# What is run on a machine with a GPU, from a folder that tools/scripts/gpu_stage.sh made:
#   tests/scripts/gpu.sh [STAGE [MINUTES [STEP...]]]      (default .stage, 9 minutes)
#
# STEP is verify, tests, bench, million, memcheck, initcheck, synccheck, racecheck or hard; without
# one, all are run.
# Logs go to $OUT when it is set, else to build/gpu. Steps past the time are skipped by name; the
# last lines count. Exit status 1 when a step failed, 2 without a device.
set -u
cd "$(dirname "$0")/../.." || exit 2
stage=$(realpath "${1:-.stage}") || exit 2
end=$((SECONDS + 60 * ${2:-9}))
wanted=" ${*:3} "
out=${OUT:-build/gpu}
mkdir -p "$out"
log=$out/gpu.log
: >"$log"
export LD_LIBRARY_PATH=$stage${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_WAIT_POLICY=passive
tessera=$stage/tessera
passed=0 failed=0 skipped=0 summary=()

result() {
    summary+=("$(printf '%-34s %4d s  %s' "$1" "$2" "$3")")
    printf '%s\n' "${summary[-1]}"
}

# counted NAME SECONDS STATUS LIMIT OUTPUT: a command that took SECONDS has ended with STATUS.
counted() {
    local name=$1 status=$3 line
    printf '\n==== %s\n' "$name" | cat - "$5" >>"$log"
    line=$(grep -E '^verify: |ERROR SUMMARY|RACECHECK SUMMARY|tests? run|PASSED' "$5" | tail -n 1)
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        result "$name" "$2" "ok${line:+: $line}"
    else
        failed=$((failed + 1))
        [ "$status" -ne 124 ] || line="not done after $4 s"
        result "$name" "$2" "FAILED ($status)${line:+: $line}"
        grep -vE '^(\[|=========\s*$)' "$5" | head -n 30
    fi
    rm -f "$5"
}

# in_time NAME SECONDS: `limit`, which is SECONDS or what is left of the time; fails where none is.
in_time() {
    limit=$((end - SECONDS < $2 ? end - SECONDS : $2))
    [ "$limit" -lt 5 ] || return 0
    skipped=$((skipped + 1))
    result "$1" 0 'skipped: no time left'
    return 1
}

# asked STEP: it is one of those named, or none is.
asked() {
    [[ $wanted = '  ' || $wanted = *" $1 "* ]]
}

# step NAME SECONDS COMMAND...: into the log, ended after SECONDS or when the time is over.
step() {
    local name=$1 limit start=$SECONDS
    in_time "$name" "$2" || return 0
    shift 2
    timeout "$limit" "$@" >"$out/step.log" 2>&1 </dev/null
    counted "$name" $((SECONDS - start)) $? "$limit" "$out/step.log"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader || true
"$tessera" info | tee -a "$log"
if "$tessera" info | grep -q '^cuda *none'; then
    echo 'gpu: no device'
    exit 2
fi

verify=("$tessera" verify --backend cuda)
! asked verify || step 'verify, 3200 cases' 400 "${verify[@]}"
# What rounding, truncation and subnormal numbers would spoil, and runs of many short strips.
staged=backend=cuda,pipeline=staged
fused=backend=cuda,pipeline=fused
long=$staged,h=1,n=64,nkv=1000,d=1024,pattern=dense
short=$staged,h=1,n=64,nkv=1000,d=64,pattern=dense
hard=(
    $short,fill=tiny,block={32x32,8x8,1x1}
    $short,fill=tiny,dtype={f16,bf16},block={64x64,32x32,8x8,1x1}
    $long,fill=cancel,dtype={f16,bf16},block={128x128,32x32,8x8}
    $staged,h=1,n=64,nkv=1000,d={128,256},pattern=dense,fill=cancel,dtype=bf16,block={64x64,16x16}
    $long,fill=cancel,block={32x32,1x1}
    $short,fill=top,dtype=f16,block={64x64,32x32,8x8,1x1}
    $staged,h=8,n=8192,d={64,128,192},dtype=bf16,pattern='blockdiag(64)',block=64x64
    $staged,h=1,n=40,nkv=40000,d=40,block={32x32,8x8},pattern='random(0.5,1)',fill=nanv
    $staged,h=1,n=300,nkv=40000,d=16,dtype=bf16,pattern='random(0.5,1)',block={64x64,1x16}
    $staged,h=8,n=1024,d=64,pattern={'random_row(0.015625,1)','global_grid(16)'},block=1x1
    $staged,h=1,n=1024,d=512,pattern={'random_row(0.015625,1)','global_grid(16)'},block=1x1
    $staged,h=8,n=800,nkv=300,d={16,136},dtype={f16,f32},pattern='random(0.04,1)',block=1x1,fill={nank,inf}
    $staged,h=2,n=640,nkv=700,d={264,600},pattern='random(0.03,1)+global(1)',block={16x16,24x40},fill={nanv,positive}
    $staged,h=4,hkv=2,n={1,301},nkv={31,1999},d={24,64,128},dtype={bf16,f16},block={32x32,64x64,100x96},pattern='random(0.5,1)',fill=nanv,layout=padded
    $staged,h=2,n=2000,nkv=3000,d={64,128},dtype=bf16,block={32x32,128x128},pattern='random(0.6,1)',fill=nank
    $staged,h=16,n=2000,nkv=3000,d={64,128},dtype={bf16,f16},block={32x32,64x64,128x128},pattern='random(0.6,1)',fill=nank
    $staged,h=2,n=100,d={64,128},dtype=bf16,block=32x32,pattern={causal,'random(0.5,1)&causal'}
    $staged,h=1,n=100,nkv=300,d=128,dtype=bf16,block=32x32,pattern=dense,scale={0.001,-0.5}
    $staged,h=16,n=1100,nkv=2000,d={64,128},dtype=bf16,block=128x128,pattern='random(0.6,1)',fill=nank
    $staged,h=8,n=17000,nkv=300,d=8,pattern={'random_row(0.1,1)','random(0.05,1)','random(0.01,1)'},block=1x1
    $staged,h=9,n=16001,nkv=300,d=8,pattern='random(0.08,1)',block=1x1,fill=inf
    $staged,h=2,n=17000,nkv=300,d=8,pattern='random_row(0.3334,1)',block=1x1,fill=nank
    $staged,h=4,n=17000,nkv=150,d=8,pattern='random(0.3,1)',block=2x3
    $staged,h=4,n=17000,nkv=200,d=8,pattern='random(0.5,1)',block=4x4,fill=nanv
    $staged,h=8,n=8700,nkv=160,d=8,pattern='random_row(0.373,1)',block=1x1,fill=sink
    $fused,h=1,n=64,nkv=1000,d={64,128},pattern=dense,fill={tiny,cancel,positive,top,subnormal}
    $fused,h=2,n=200,nkv=900,d={32,64,96,128,192,256,512},dtype=f16,pattern='random(0.5,1)',block={64x64,8x8},fill=top,part={0,256}
    $fused,h=2,n=200,nkv=900,d={64,96,128,256},dtype=f16,pattern='random(0.5,1)',block=64x64,fill=top,tile={16,64},lists=1
    $fused,h=1,n=64,nkv=1000,d={128,256},dtype={f16,bf16},pattern=dense,fill=cancel
    $fused,h=2,n=300,nkv=900,d={32,24},dtype={f16,bf16,f32},pattern='random(0.4,1)',block={128x128,64x64,8x8,128x1},fill=nanv
    $fused,h=2,n=300,nkv=900,d=32,dv=8,dtype={f16,bf16},pattern={causal,'random(0.3,3)&causal'},block={128x128,32x32},tile=128,part={0,256}
    $fused,h=4,hkv=2,n=300,nkv=900,d=32,dtype={f16,bf16},pattern='random(0.5,1)',block=64x64,lists=kv,fill=sink
    $fused,h=2,n={9,140},nkv=1598,d=32,dv={8,16,32},dtype={f16,bf16},block={17x64,64x64},pattern={'global(447)',causal},fill=nanv,part=168
    $fused,h=2,n=300,nkv=900,d={8,16},dv={24,32},dtype={f16,bf16},block={64x64,16x16,128x1},pattern='random(0.4,3)',fill=nanv
    $fused,h=2,n=140,nkv=300,d=29,dv=31,dtype={f16,bf16},block={64x64,8x8},pattern='random(0.4,1)',layout=padded,align=2,tile={16,128},fill=nanv
    $fused,h=2,n=140,nkv=300,d=29,dv=31,block={64x64,8x8},pattern='random(0.4,1)',layout=padded,align=4,tile={8,16,128},fill=nanv
    $fused,h=2,n=300,nkv=4224,d=32,dtype={f16,bf16},pattern={dense,'random(0.5,1)'},block=128x128,fill={cancel,subnormal,nanv}
    $fused,h=2,n=300,nkv=900,d=32,dtype=bf16,kernel=cuda_attention_bf16_d32,pattern={causal,'random(0.3,1)'},block={64x64,8x8},tile={8,16,32,64,128},part=256
    $fused,h=2,n=300,nkv=900,d=32,kernel=cuda_attention_f32_d32,pattern={causal,'random(0.3,1)'},block={64x64,16x16},tile={16,32,64,128},part=256
    $fused,h=2,n=300,nkv=700,d={80,96},dtype={f16,bf16},pattern='random(0.5,1)',block={128x128,64x64,8x8,128x1}
    $fused,h=1,n=300,nkv=700,d=96,dtype=bf16,pattern='random(0.5,1)',block=64x64,kernel=cuda_attention_bf16_d96,tile={16,64,128}
    $fused,h=2,n=90,nkv=300,d={64,96,256},dtype=f16,pattern='random(0.3,1)',block=8x8,fill=sink,scale=-0.5
    $fused,h=1,n=400,nkv=3000,d={64,128},dtype={f16,bf16},pattern='random(0.3,1)',block={192x1,192x64},part={0,500}
    $fused,h=2,n=200,nkv=7112,d={80,96,128},dtype={f16,bf16},pattern='random(0.5,1)',block={128x508,192x508},fill={nanv,nank}
    $fused,h=1,n=700,d=128,dtype={bf16,f16},block=128x128,pattern='window(511,0)',part={0,256},fill={nank,nanv}
    $fused,h=1,n=400,nkv=700,d={64,96,256},dtype=bf16,block=64x64,pattern='window(77,0)',tile={16,32,64,128}
    $fused,h=2,n=300,nkv=777,d={64,128},dtype=bf16,block={64x64,64x508,128x100,37x41},pattern='random(0.5,1)&causal',tile=128,fill=nanv
    $fused,h=1,n=200,nkv=700,d={64,128},pattern='random(0.2,1)',block={8x8,16x16,32x32},tile={8,16},fill=positive
    $fused,h=2,n=300,nkv=700,d={64,24,100},pattern='random(0.2,1)',block={8x8,1x1},tile={8,16},fill={nanv,inf}
    $fused,h=1,n=200,nkv=700,d={64,128},block=64x64,pattern={causal,'window(77,9)'},tile={8,16},part={0,256}
    $fused,h=4,hkv=2,n=100,d={64,33,99},dv=40,block=8x8,pattern='random(0.3,1)',lists=kv,tile={8,16},layout=padded,align=4
    $fused,h=2,n=300,nkv={517,3000},d=64,dtype=bf16,block={8x8,16x16,32x32,24x20,1x1},pattern='random(0.1,1)',kernel=cuda_attention_bf16_sm90_d64,tile={64,128},part={0,512},fill=nanv
    $fused,h=2,n={128,700},nkv=4224,d=64,dtype=bf16,block=128x128,pattern={dense,'random(0.5,1)',causal},part={0,2048},fill={nanv,sink}
    $fused,h=2,n=300,nkv=3000,d=128,dtype=bf16,block={8x8,16x16,32x32,4x4,128x350},pattern='random(0.1,1)',kernel=cuda_attention_bf16_sm90_d128,tile=128,part={0,512},fill=nank
    $fused,h=2,n=300,nkv=700,d={256,136},pattern='random(0.2,1)',block={8x8,64x64},tile={8,16,32},fill={nanv,inf}
    $fused,h=1,n=200,nkv=700,d={250,192},block=64x64,pattern={causal,'window(77,9)'},tile={8,16,32},part=256,fill=positive
    $fused,h=1,n=40,nkv=3000,d={256,160},pattern=dense,tile={8,16,32},fill={tiny,cancel,subnormal}
    $fused,h=4,hkv=2,n=100,d={256,133},dv=140,block=8x8,pattern='random(0.3,1)',lists=kv,tile={8,16,32},layout=padded,align=4
    $fused,h=4,hkv=2,n=301,nkv=999,d=192,dv=128,block={16x16,128x1},pattern='random(0.3,1)',lists=kv,tile={8,16},part={0,256},fill=nank
    $fused,h=2,n=90,nkv=700,d=200,dv=136,block={16x1,37x41},pattern='random(0.3,1)&causal',layout=padded,tile={8,16,32},scale={0.001,-0.5}
    $fused,h=1,n=20,nkv=20000,d=256,pattern='random(0.5,1)',block=64x64,tile={8,16,32},part={0,4096},fill=positive
    $fused,h=2,n=90,nkv=700,d=40,dv=256,pattern='random(0.3,1)',block=16x16,tile={8,16,32},fill=nanv
    $fused,h=2,n=90,nkv=700,d=256,dv=40,pattern='random(0.3,1)',block=16x16,tile={8,16,32},fill=nank
    $fused,h=2,n=300,nkv=700,d=100,pattern={causal,'random(0.2,1)'},block=16x16,tile={16,32},kernel=cuda_attention_f32_d128,fill={nanv,inf}
    $fused,h=2,n=300,nkv=700,d=256,pattern='random(0.2,1)',block=16x16,tile={8,16,32},kernel=cuda_attention_f32_wide,fill={nanv,inf}
    $fused,h=2,n=300,nkv=700,d={300,512,700,1024},dtype={f16,bf16,f32},pattern='random(0.2,1)',block={8x8,64x64},tile={8,16},fill=nanv
    $fused,h=1,n=140,nkv=3000,d=576,dv=512,dtype={f16,bf16,f32},pattern='random(0.3,3)&causal',block=16x16,tile={8,16},part={0,512},fill=inf
    $fused,h=1,n=64,nkv=1000,d={512,768,1024},pattern=dense,fill={tiny,cancel,positive,subnormal}
    $fused,h=1,n=64,nkv=1000,d={512,768,1024},dtype={f16,bf16},pattern=dense,fill={cancel,sink,top,nank},tile={16,32}
    $fused,h=2,n=70,nkv=300,d={500,1000},dtype={f16,bf16,f32},pattern=causal,block={32x32,128x1},scale={0.001,-0.5},fill=positive
    $fused,h=4,hkv=2,n=100,d={300,777},dv=515,dtype={f32,bf16},block=8x8,pattern='random(0.3,1)',lists=kv,tile={8,16},layout=padded,align=4
    $fused,h=4,hkv=2,n=100,d=301,dv=999,dtype={f16,bf16},block=37x41,pattern='random(0.3,1)&causal',layout=padded,align=2,tile=32
    $fused,h=20,n=300,nkv=150,d={768,1024},dtype={f16,bf16,f32},pattern='random(0.03,1)',block=16x16,tile=8
    $fused,h=40,n=300,nkv=150,d=512,dtype={bf16,f32},pattern='random(0.03,1)',block=16x16,tile={8,16}
    $fused,h=1,n=20,nkv=20000,d={512,768,1024},pattern='random(0.5,1)',block=64x64,part={0,4096},fill=positive
    $fused,h=2,n=150,nkv=500,d={512,768,1024},dtype=bf16,block={64x64,16x16,128x1},pattern='random(0.4,1)&causal',part={0,256},fill=nanv
    $fused,h=1,n=64,nkv=500,d={512,1024},dtype={f16,bf16},pattern=dense,fill={cancel,top}
    $fused,h=4,hkv=2,n=150,nkv=500,d={576,776},dv={512,264},dtype=bf16,block={32x64,16x16},pattern='random(0.4,3)&causal',lists=kv,tile={32,64},part=256,fill=inf
    $fused,h=1,n=100,nkv=1524,d={512,768,1024},dtype=bf16,block=64x508,pattern='random(0.5,1)',fill={nanv,nank}
    $fused,h=1,n=200,nkv=500,d={512,1024},dtype={f16,bf16},block=64x64,pattern={'window(77,0)','random(0.4,1)&causal'},fill=nank
    $fused,h=20,n=300,nkv=150,d=1024,dtype=bf16,block=64x64,pattern='random(0.1,1)'
    $fused,h=20,n=300,nkv=150,d={512,1024},dtype=bf16,block=16x16,pattern={'random(0.4,1)','random(0.03,1)'},tile=64
    $fused,h=1,n=70,nkv=300,d={64,520},dtype=bf16,block=64x64,pattern='random(0.6,1)',kernel=cuda_attention_bf16_sm90_d1024
    $fused,h=2,n=140,nkv=300,d=520,dv=600,dtype=f16,block={64x64,8x8},pattern='random(0.4,1)',layout=padded,align=16,fill=sink
    $fused,h=1,n=200,nkv=500,d={320,1000},dtype=bf16,block=64x64,pattern='window(77,9)',tile=64,scale={0.01,20}
    $fused,h=1,n=20,nkv=20000,d=1024,dtype=bf16,pattern='random(0.5,1)',block=64x64,part={0,4096},fill=positive
    $fused,h=40,n=2000,nkv=50,d=256,pattern='random(0.2,1)',block=16x16,tile={8,16,32}
    $fused,h=40,n=900,nkv=150,d={128,256},pattern={'random(0.4,1)','random(0.03,1)'},block=16x16,tile={8,16}
    $fused,h=2,n=300,nkv=1777,d={64,128},dtype={bf16,f16,f32},block={8x8,64x64,1x1,37x41},pattern={'random(0.1,1)','random(0.4,2)&causal'},tile={64,128},fill=nanv
    $fused,h=1,n=140,nkv=20000,d={64,128},pattern='random(0.5,1)',block=64x64,fill=positive
    $fused,h=1,n=140,nkv=3000,d={64,128},pattern='random(0.5,1)',block={64x64,8x8,128x1},fill={inf,nank})
# Nothing runs beside them: processes that share a GPU wait for their turns.
! asked hard || step 'verify, hard cases' 500 "$tessera" verify "${hard[@]}"
for test in cuda api plan; do
    ! asked tests || [ ! -x "$stage/test_$test" ] || step "test_$test" 120 "$stage/test_$test"
done

bench=("$tessera" bench --seconds 0.3 --json "$out/bench.json"
    h=8,n=4096,d=64,dtype=f32,block=64x64,pattern='random(0.1,1)',backend=cuda
    h=8,n=4096,d=64,dtype=f16,block=64x64,pattern='random(0.1,1)',backend=cuda
    h=8,n=4096,d=64,dtype=bf16,block=64x64,pattern='random(0.1,1)',backend=cuda
    h=16,n=16384,d=128,dtype=bf16,block=128x128,pattern='random(0.1,1)',backend=cuda
    h=8,n=4096,d=64,dtype=f32,block=8x8,pattern='random(0.05,1)',backend=cuda
    h=8,n=4096,d=64,dtype=f32,block=1x1,pattern='random(0.01,1)',backend=cuda
    h=1,n=16384,d=768,dtype=f32,block=8x8,pattern='random(0.05,1)',backend=cuda
    h=1,n=16384,d=768,dtype=f32,block=32x32,pattern='random(0.05,1)',backend=cuda)
! asked bench || step 'bench' 150 "${bench[@]}"
sed -n '/^==== bench/,$p' "$log" | cut -c 1-200
# Sampled rows are held against the oracle.
million=("$tessera" bench --seconds 0.05
    h=8,n=1048576,d=64,dtype={f32,bf16},pattern='window(512,512)',lists=1,backend=cuda)
! asked million || step 'bench, a million tokens' 120 "${million[@]}"

# Small cases that meet every type, every mapping of rows, both of softmax and every kind of tile.
reduced=(
    backend=cuda,h=2,n=70,d=24,dv=40,block=16x16,pattern=causal
    backend=cuda,h=2,n=70,d=24,dv=40,dtype=f16,block=16x16,pattern='window(9,3)',layout=padded
    backend=cuda,h=2,hkv=1,n=70,d=33,dtype=bf16,block=64x64,pattern='random(0.5,1)&causal'
    backend=cuda,h=2,n=70,d=7,dtype=f16,block=5x7,pattern='random(0.5,1)',source=mask,align=2
    backend=cuda,h=2,n=70,d=16,block=1x1,pattern='random(0.2,1)',source=topk,fill=nanv
    backend=cuda,h=2,n=70,d=16,dtype=bf16,block=1x16,pattern='dilated(3,4)'
    backend=cuda,h=1,n=20,nkv=700,d=40,dtype=bf16,block=1x1,pattern='random(0.3,1)',part=128
    backend=cuda,h=1,n=90,d=64,dtype=f16,block=8x8,pattern='random(0.4,1)',tile=16,fill=sink
    backend=cuda,h=1,n=90,d=128,dtype=f16,block=64x64,pattern=causal,fill=extreme
    backend=cuda,h=1,n=140,d=136,dtype=bf16,block=128x128,pattern='random(0.7,1)&causal',tile=128
    backend=cuda,h=1,n=3,nkv=2000,d=8,dtype=f16,block=4x4,pattern='random(0.5,1)'
    backend=cuda,h=1,n=70,d=24,dv=96,block=8x8,pattern='window(20,20)'
    backend=cuda,h=1,n=70,d=24,dv=96,dtype=bf16,block=8x8,pattern='window(20,20)'
    backend=cuda,h=1,n=70,d=24,dv=96,block=32x32,pattern=causal
    backend=cuda,h=1,n=70,d=24,dv=96,dtype=f16,block=32x32,pattern=causal
    backend=cuda,h=1,n=200,d=128,dtype=bf16,block=128x128,pattern='window(70,0)',tile=128
    backend=cuda,h=1,n=140,d=64,dtype=bf16,block=64x64,pattern='random(0.5,1)',tile=128
    backend=cuda,h=1,n=70,nkv=3000,d=24,dv=96,block=64x64,pattern=dense,fill=nanv
    backend=cuda,h=1,n=70,nkv=3000,d=24,dv=96,dtype=bf16,block=64x64,pattern=dense
    backend=cuda,pipeline=staged,h=1,n=3,nkv=40000,d=8,dtype=f16,block=4x4,pattern=dense
    backend=cuda,pipeline=staged,h=1,n=9,nkv=6001,d=8,block=1x3,pattern=dense
    backend=cuda,pipeline=staged,h=1,n=5,nkv=15001,d=8,block=1x1,pattern=dense
    backend=cuda,pipeline=staged,h=1,n=9,nkv=700,d=200,block=1x1,pattern='random(0.3,1)',fill=nanv
    backend=cuda,pipeline=staged,h=8,n=300,d=136,block=1x1,pattern='random_row(0.1,1)'
    backend=cuda,pipeline=staged,h=2,n=300,d=40,block=1x1,pattern='global_grid(7)'
    backend=cuda,pipeline=staged,h=8,n=600,d=16,block=1x1,pattern='random_row(0.02,1)'
    backend=cuda,pipeline=staged,h=2,n=70,nkv=600,d=16,block=1x1,pattern='random(0.05,1)'
    backend=cuda,pipeline=staged,h=1,n=640,nkv=700,d=264,block=16x16,pattern='random(0.03,1)+global(1)'
    backend=cuda,pipeline=staged,h=1,n=130,nkv=2000,d=72,dtype=bf16,block=128x128,pattern=dense
    backend=cuda,pipeline=staged,h=1,n=130,nkv=700,d=264,dv=16,dtype=f16,block=64x64,pattern=causal
    backend=cuda,pipeline=staged,h=1,n=70,nkv=700,d=128,dtype=bf16,block=32x32,pattern='random(0.7,1)'
    backend=cuda,pipeline=staged,h=2,n=200,nkv=2000,d=64,dtype=f16,block={64x64,192x32},pattern='random(0.7,1)'
    backend=cuda,pipeline=staged,h=40,n=330,nkv=500,d=64,dtype=bf16,block=32x32,pattern='random(0.7,1)'
    backend=cuda,pipeline=staged,h=8,n=4300,nkv=110,d=8,block=1x1,pattern='random_row(0.9,1)'
    backend=cuda,h=2,n=200,nkv=600,d=64,dtype=f16,block=64x64,pattern='window(100,30)',layout=padded
    backend=cuda,h=1,n=140,nkv=1100,d=128,dtype=bf16,block=64x64,pattern='random(0.7,1)',part=256
    backend=cuda,h=1,n=140,nkv=300,d=256,dtype=bf16,block=64x64,pattern='random(0.7,1)&causal'
    backend=cuda,h=2,n=140,nkv=300,d=192,dv=128,dtype=f16,block=128x1,pattern='random(0.4,1)'
    backend=cuda,h=4,hkv=2,n=140,nkv=900,d=128,dtype=bf16,pattern='random(0.4,1)',lists=kv,part=256
    backend=cuda,pipeline=fused,h=1,n=200,nkv=300,d=128,dtype=bf16,block=192x1,pattern='random(0.4,1)'
    backend=cuda,pipeline=fused,h=2,n=400,nkv=400,d=64,dtype=f16,block=192x64,pattern=causal
    backend=cuda,h=4,hkv=1,n=100,d=64,dtype=f16,block=48x1,pattern='random(0.4,1)',lists=1
    backend=cuda,h=1,n=140,d=128,dtype=bf16,block=128x1,pattern='random(0.5,1)',fill=nanv
    backend=cuda,h=1,n=140,nkv=520,d=64,dtype=bf16,block=8x8,pattern='random(0.2,1)',kernel=cuda_attention_bf16_sm90_d64,tile=128,part=256
    backend=cuda,h=1,n=140,nkv=517,d=64,dtype=f16,block=32x32,pattern='random(0.3,3)',kernel=cuda_attention_f16_sm90_d64,tile=128
    backend=cuda,h=1,n=140,nkv=900,d=128,dtype=bf16,block=16x16,pattern='random(0.3,1)',kernel=cuda_attention_bf16_sm90_d128,tile=128
    backend=cuda,pipeline=fused,h=1,n=140,nkv=700,d=64,block=64x64,pattern='window(300,30)',part=512
    backend=cuda,pipeline=fused,h=1,n=140,nkv=700,d=128,block=8x8,pattern='random(0.6,1)',fill=inf
    backend=cuda,pipeline=fused,h=1,n=70,d=100,block=64x64,pattern=causal,tile=64,align=4
    backend=cuda,pipeline=fused,h=2,n=140,nkv=700,d=64,block=8x8,pattern='random(0.4,1)',tile=8,part=256
    backend=cuda,pipeline=fused,h=1,n=70,nkv=90,d=128,block=1x1,pattern='random(0.3,1)',tile={8,16},fill=inf
    backend=cuda,pipeline=fused,h=1,n=70,d=100,block=64x64,pattern=causal,tile={8,16},align=4
    backend=cuda,pipeline=fused,h=2,n=60,nkv=700,d=256,block=16x16,pattern='random(0.4,1)',tile={8,16,32},part=256
    backend=cuda,pipeline=fused,h=2,hkv=1,n=70,nkv=90,d=192,dv=128,block=16x1,pattern='random(0.3,1)',tile={8,16},fill=inf
    backend=cuda,pipeline=fused,h=1,n=70,d=133,dv=250,block=64x64,pattern=causal,tile={8,32},align=4
    backend=cuda,pipeline=fused,h=40,n=1500,nkv=50,d=256,block=16x16,pattern='random(0.2,1)',tile=32
    backend=cuda,pipeline=fused,h=40,n=300,nkv=50,d=136,block=16x16,pattern='random(0.4,1)',tile={8,16}
    backend=cuda,pipeline=fused,h=1,n=20,nkv=90,d={512,768,1024},block=16x16,pattern='random(0.6,1)',tile={8,16},part=32
    backend=cuda,pipeline=fused,h=1,n=20,nkv=90,d={512,1024},dtype=bf16,block=16x16,pattern='random(0.6,1)',tile={8,32},part=32
    backend=cuda,pipeline=fused,h=1,n=20,nkv=90,d=768,dtype=bf16,block=16x16,pattern='random(0.6,1)',tile=16
    backend=cuda,pipeline=fused,h=2,hkv=1,n=40,d=576,dv=512,dtype=f16,block=8x8,pattern='random(0.3,3)&causal',tile=16,fill=sink
    backend=cuda,pipeline=fused,h=1,n=70,nkv=200,d={512,768},dtype=bf16,block={64x64,16x16},pattern='random(0.6,1)&causal',part=128
    backend=cuda,pipeline=fused,h=2,hkv=1,n=40,nkv=150,d=1024,dtype=f16,block={32x32,32x64},pattern='random(0.6,1)',lists=kv,tile=32,fill=nanv
    backend=cuda,pipeline=fused,h=1,n=70,nkv=1016,d={512,1024},dtype=bf16,block=64x508,pattern=dense,fill=nanv
    backend=cuda,pipeline=fused,h=1,n=140,nkv=300,d=576,dv=512,dtype=f16,block=64x64,pattern=causal
    backend=cuda,pipeline=fused,h=40,n=120,nkv=50,d=300,dtype=f16,block=16x16,pattern='random(0.2,1)',tile=8
    backend=cuda,pipeline=fused,h=2,n=60,nkv=300,d=40,dv=256,block=16x16,pattern='random(0.3,1)',tile={8,32}
    backend=cuda,pipeline=fused,h=1,n=70,nkv=300,d=128,block=16x16,pattern='random(0.3,1)',tile={16,32},kernel=cuda_attention_f32_d128
    backend=cuda,pipeline=fused,h=1,n=256,d=64,dtype=bf16,block=8x8,pattern='random(0.3,1)',tile=128,kernel=cuda_attention_bf16_d64
    backend=cuda,pipeline=fused,h=2,n=200,nkv=600,d=32,dtype=bf16,block=64x64,pattern='window(100,30)'
    backend=cuda,pipeline=fused,h=2,n=9,nkv=798,d=32,dv=16,dtype=bf16,block=17x64,pattern='global(447)',part=168
    backend=cuda,pipeline=fused,h=1,n=140,nkv=900,d=32,dtype=f16,block=128x1,pattern='random(0.5,1)',part=256
    backend=cuda,pipeline=fused,h=1,n=140,nkv=517,d=32,dtype=bf16,block=16x16,pattern='random(0.3,3)',kernel=cuda_attention_bf16_sm90_d32,tile=128
    backend=cuda,pipeline=fused,h=1,n=140,nkv=300,d=32,dtype=bf16,block=128x128,pattern='random(0.7,1)&causal',kernel=cuda_attention_bf16_d32
    backend=cuda,pipeline=fused,h=1,n=140,nkv=300,d=32,dtype=f16,block=8x8,pattern='random(0.4,1)',kernel=cuda_attention_f16_d32
    backend=cuda,pipeline=fused,h=1,n=140,nkv=300,d=32,block=64x64,pattern=causal,kernel=cuda_attention_f32_d32
    backend=cuda,pipeline=fused,h=1,n=140,nkv=300,d=96,dtype=bf16,block=128x128,pattern='random(0.7,1)&causal'
    backend=cuda,h=1,n=300,nkv=500,d=96,dtype=bf16,block=64x64,pattern='random(0.6,1)&causal',tile=128,kernel=cuda_attention_bf16_d96
    backend=cuda,h=1,n=140,nkv=300,d=128,dtype=bf16,block=128x128,pattern=dense,kernel=cuda_attention_bf16_d128
    backend=cuda,pipeline=fused,h=1,n=40,d=128,block=16x1,pattern='random(0.6,1)',tile=16
    backend=cuda,pipeline=fused,h=1,n=70,d=96,dtype=f16,block=8x8,pattern='random(0.4,1)',fill=sink,scale=-0.5)
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
# Beside one another: each keeps a core of the host busy, and nothing is timed. racecheck is the
# slowest by far, and has an eighth of the cases at a time.
declare -A running limits
names=() start=$SECONDS
for part in memcheck initcheck synccheck racecheck-{0,1,2,3,4,5,6,7}; do
    tool=${part%-*} cases=("${reduced[@]}")
    asked "$tool" || continue
    if [ "$part" != "$tool" ]; then
        cases=()
        for ((i = ${part#*-}; i < ${#reduced[@]}; i += 8)); do
            cases+=("${reduced[i]}")
        done
    fi
    if [ -z "$sanitizer" ]; then
        skipped=$((skipped + 1))
        result "$part" 0 'skipped: compute-sanitizer is not here'
    elif in_time "$part" 500; then
        timeout "$limit" stdbuf -oL "$sanitizer" --tool "$tool" --error-exitcode 3 --print-limit 5 \
            "$tessera" verify "${cases[@]}" >"$out/$part.log" 2>&1 </dev/null &
        names+=("$part") running[$part]=$! limits[$part]=$limit
    fi
done
for name in "${names[@]}"; do
    wait "${running[$name]}"
    counted "$name" $((SECONDS - start)) $? "${limits[$name]}" "$out/$name.log"
done

printf '\n'
printf '%s\n' "${summary[@]}" "$passed passed, $failed failed, $skipped skipped, $SECONDS s" |
    tee -a "$log"
[ "$failed" -eq 0 ]
