#!/bin/bash
# Drives the tessera program through good and bad input.
#   tests/scripts/tool.sh path/to/tessera
# Bad input: exit status 2, one line on stderr, no output file. Good input: exit status 0, nothing on
# stderr, and results that agree with the oracle.
# Word splitting of $(arrays ...) is wanted: no name has a space.
# shellcheck disable=SC2046,SC2015
set -u
repository=$(realpath "$(dirname "$0")/../..")
# shellcheck source=tests/scripts/checks.sh
. "$repository/tests/scripts/checks.sh"
"$make_files" . || exit 2

run=(run --q f32-q.npy --k f32-k.npy --v f32-v.npy)
causal=(--pattern causal --block 16x16)
out=(--out out/o.npy --lse out/l.npy)

# ---- the program itself ----
refused 'a command is needed'
refused 'frob is no command' frob
refused "unrecognized option '--frob'" info --frob
refused 'no argument is taken' info x
refused "unrecognized option '--frob'" run --frob
refused "option '--q' requires an argument" run --q
refused 'every argument needs its option' "${run[@]}" "${causal[@]}" "${out[@]}" stray
good --help
says 'Usage: tessera COMMAND'
# The references have every term, as it is written, and every key.
good --help spec
for signature in $(sed -n 's/^    {"[a-z_]*", "[a-z*]*", "\(.*\)", .*},$/\1/p' "$repository/src/pattern/spec_terms.c" |
    tr -d ' '); do
    checks=$((checks + 1))
    tr -d ' ' <std | grep -q "^$signature" || fail "--help spec does not have $signature"
done
[ "$(grep -c '^  [a-z]' std)" -eq 17 ] || fail '--help spec has other terms'
cp std spec
good --help case
for key in b h hkv n nkv d dv dtype block pattern backend pipeline kernel lists seed source layout \
    fill align threads scale tile split softcap alibi sink dropout op grads dlse orest given out32 page \
    kvtype kvscale vink rope base topk valid form entries cut select q0 k0 v0 sums sumtype sumref \
    activation bias cache; do
    checks=$((checks + 1))
    grep -q "^  $(printf '%-9s' $key) " std || fail "--help case does not have $key"
done
[ "$(grep -c '^  [a-z]' std)" -eq 54 ] || fail '--help case has other keys'
cp std case
checks=$((checks + 1))
! grep '.\{78\}' spec case >err || fail 'lines that argp breaks'
refused 'spec, case or a command is needed (info, run, pattern, plan, verify, gradcheck or bench)' --help frob
for command in run pattern; do
    good $command --help
    checks=$((checks + 1))
    tail -n 18 spec | while read -r line; do grep -qF "$line" std || exit 1; done ||
        fail "$command --help has no SPEC"
done
for command in plan verify bench gradcheck; do
    good $command --help
    checks=$((checks + 1))
    tail -n +2 case | sed 's/; .*//' | while read -r line; do grep -qF "$line" std || exit 1; done ||
        fail "$command --help has no CASE"
done
good --version
says 'tessera '
for command in info run pattern plan verify bench gradcheck; do
    good $command --help
    says "Usage: tessera $command"
    cp std page
    for help in --help help; do
        good $help $command
        checks=$((checks + 1))
        cmp -s std page || fail "$help $command is not $command --help"
    done
    good $command --version
done
good info
says 'isa '
says 'kernel '
# What cannot be used is counted, each reason once, and named where that is asked for.
cp std brief
good info --kernels
checks=$((checks + 3))
[ "$(sed -n 's/.*names them): //p' brief | sort | uniq -d)" = '' ] || fail 'info repeats a reason'
[ "$(grep -c 'unusable: ' std)" -eq "$(sed -n 's/^kernel .*: \([0-9]*\) unusable (info --kernels names them): .*/\1/p' brief |
    awk '{ n += $1 } END { print n + 0 }')" ] || fail 'info counts other kernels than it names'
grep -qE '^cuda +([0-9]|none: (there is no NVIDIA|the NVIDIA|this library was built))' std ||
    fail 'info does not say why there is no GPU'
checks=$((checks + 1))
"$tessera" info >/dev/full 2>err
[ $? -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] || fail 'standard output that is full'
good plan n=256,d=32,pattern=causal,backend=cpu
says 'tess_attention takes the fused pipeline'
good plan n=256,d=32,h=4,hkv=2,pattern='window(5,0)',block=16x16
good plan n=256,d=32,backend=cpu,softcap=30,alibi=1,sink=1,dropout=0.25
says '  modifiers softcap=30 alibi sink dropout=0.25'
refused 'softcap is not 0 or within 2^-64 ... 2^64' plan n=256,backend=cpu,softcap=1e25
refused 'alibi=2: a whole number from 0 to 1' plan n=256,alibi=2
refused 'a case is needed' plan
refused 'one case is enough' plan n=4 n=5
refused "'heads' is no key of a case; there are b, h, hkv, n, nkv, d, dv, dtype," plan heads=1
refused 'fill, align, threads, scale, tile, split' plan heads=1
refused "'sliding_window': is window(left,right) meant?" plan n=64,pattern='sliding_window(9)'
for wrong in 'causal+window(5)' 'causal+window(-1,0)' 'causal+frob'; do # a place is told once
    refused ', at offset ' plan "n=64,pattern=$wrong"
    checks=$((checks + 1))
    ! grep -q position err || fail "two places of $wrong: $(cat err)"
done
# GPUs that need not be here, planned for wherever the library has kernels for them.
for target in gpu 90 90x x132 90x0 0x132 90x132x1 -90x132 99999999999x1; do
    refused "--target $target: h100, h200," plan --target=$target n=256
done
refused '--target is a GPU' plan --target h200 n=256,backend=cpu
refused '--keys is of lists on the device' plan --keys 4 n=256
refused 'a whole number from 0' plan --keys=-1 n=64,nkv=256,topk=16
good plan --keys 4 n=64,nkv=256,topk=16,backend=cpu
says '  keys      16 of a query tile, 8192 of all, 8192 pairs, at capacity'
says ' of q, k, v and o, each once'
says ' ms where each query tile lists 4 keys'
refused 'given twice' plan --target h200 --target h100 n=256
if "$tessera" info | grep -q '^kernel  *cuda'; then
    for target in h100 h200 a100 l40s rtx4090 b200 rtx5090 90x132 80x108; do
        good plan --target $target n=4096,d=128,dtype=bf16,pattern=causal
        says 'fused attention on cuda'
        says 'staged attention on cuda'
    done
    good plan --target h200 n=4096,d=128,dtype=bf16,block=128x128,pattern=causal,pipeline=fused
    says 'kernel    attention: cuda_attention_bf16_sm90_d128'
    says ' of other types, head sizes or machines'
    checks=$((checks + 1))
    ! grep -q 'not cuda.*\(_f16\|_f32\|_d32:\)' std || fail 'kernels that could never apply'
    good plan --target a100 n=4096,d=128,dtype=bf16,pattern=causal,pipeline=fused
    says 'kernel    attention: cuda_attention_bf16_d128'
    good plan --target h200 n=4096,d=1100,dtype=bf16
    says 'cuda fused: no plan: '
    says 'its heads have at most 1024 dims'
    says 'tess_attention takes the staged pipeline'
else
    refused 'built without CUDA' plan --target h200 n=256
fi
refused 'frob' plan frob=1
refused 'frob' plan n=256,pattern=frob
refused 'none' plan n=256,backend=cpu,kernel=none

# ---- run: options ----
refused '--q is needed' run
refused '--k is needed' run --q f32-q.npy
refused '--out is needed' "${run[@]}" "${causal[@]}"
refused 'a pattern is needed' "${run[@]}" "${out[@]}"
refused '--causal is no option: --pattern causal' "${run[@]}" "${out[@]}" --causal
refused "--window is no option: --pattern 'window(left,right)'" pattern --window 9
refused 'two patterns' "${run[@]}" "${out[@]}" --pattern causal --mask mask2.npy
refused 'two patterns' "${run[@]}" "${out[@]}" --topk topk2.npy --lists x.safetensors
refused 'given twice' "${run[@]}" "${out[@]}" --pattern causal --pattern dense
refused 'given twice' "${run[@]}" "${out[@]}" "${causal[@]}" --q f32-q.npy
refused '--topk has' "${run[@]}" "${out[@]}" --topk topk2.npy --block 1x1
for block in 0x4 4x0 64 x 4x4x4 -4x4 4x 99999999999999999999x1 4.0x4; do
    refused "--block $block" "${run[@]}" "${out[@]}" --pattern causal --block "$block"
done
refused '--backend gpu' "${run[@]}" "${out[@]}" "${causal[@]}" --backend gpu
refused '--pipeline fast' "${run[@]}" "${out[@]}" "${causal[@]}" --pipeline fast
refused 'CPU only' "${run[@]}" "${out[@]}" "${causal[@]}" --pipeline oracle --backend cuda
refused '--dtype f8' "${run[@]}" "${out[@]}" "${causal[@]}" --dtype f8
for scale in x nan inf '' 1e999 1e-400; do
    refused '--scale' "${run[@]}" "${out[@]}" "${causal[@]}" --scale "$scale"
done
for cap in x nan inf '' 1e-400 -1 1e-20 2e19; do
    refused '--softcap' "${run[@]}" "${out[@]}" "${causal[@]}" --softcap "$cap"
done
for share in x nan '' 1e-400 -0.1 0.99999 1 10; do
    refused '--dropout' "${run[@]}" "${out[@]}" "${causal[@]}" --dropout "$share"
done
for seed in x '' -1 1.5 0x1 18446744073709551616; do
    refused '--dropout-seed' "${run[@]}" "${out[@]}" "${causal[@]}" --dropout 0.1 --dropout-seed "$seed"
done
refused 'goes with --dropout' "${run[@]}" "${out[@]}" "${causal[@]}" --dropout-seed 1
refused 'given twice' "${run[@]}" "${out[@]}" "${causal[@]}" --sink a.npy --sink b.npy
for option in --alibi --sink; do
    refused "$option none.npy: No such file" "${run[@]}" "${out[@]}" "${causal[@]}" $option none.npy
    refused "$option frob: the name ends" "${run[@]}" "${out[@]}" "${causal[@]}" $option frob
    refused "$option slopes-i32.npy: elements are i32" "${run[@]}" "${out[@]}" "${causal[@]}" $option slopes-i32.npy
    for file in short rank2; do
        refused '[4] is needed, a number for each query head' "${run[@]}" "${out[@]}" "${causal[@]}" \
            $option slopes-$file.npy
    done
    refused 'of head 2 is NaN' "${run[@]}" "${out[@]}" "${causal[@]}" $option slopes-nan.npy
done
refused 'the slope of head 1 is infinite' "${run[@]}" "${out[@]}" "${causal[@]}" --alibi slopes-infinite.npy
refused '2 tensors' "${run[@]}" "${out[@]}" "${causal[@]}" --alibi modifiers.safetensors
for threads in 0 -1 two 99999999999999999999; do
    refused '--threads' "${run[@]}" "${out[@]}" "${causal[@]}" --threads "$threads"
done
"$tessera" info | grep -q '^cuda *none' &&
    refused 'CUDA' "${run[@]}" "${out[@]}" "${causal[@]}" --backend cuda

# ---- run: outputs ----
refused 'folder' "${run[@]}" "${causal[@]}" --out none/o.npy
refused 'folder' "${run[@]}" "${causal[@]}" --out out/o.npy --lse none/l.npy
refused 'neither in .npy' "${run[@]}" "${causal[@]}" --out out/o.bin
refused 'same file' "${run[@]}" "${causal[@]}" --out out/o.npy --lse ./out/../out/o.npy
refused 'same file' "${run[@]}" "${causal[@]}" --out out/o.safetensors:o --lse out/o.safetensors:l
mkdir out/o.npy
checks=$((checks + 1))
"$tessera" "${run[@]}" "${causal[@]}" --out out/o.npy >std 2>err
[ $? -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] || fail 'an output that is a folder'
rmdir out/o.npy

# ---- run: input files ----
printf '' >empty.npy
printf 'garbage, not an array at all' >garbage.npy
cp garbage.npy garbage.safetensors
printf '' >empty.safetensors
head -c 100 f32-q.npy >header-cut.npy
head -c 5000 f32-q.npy >cut.npy
head -c 5000 f32.safetensors >cut.safetensors
head -c 40 f32.safetensors >header-cut.safetensors
(cat f32.safetensors; printf x) >long.safetensors
printf '\377\377\377\377\377\377\377\177{}' >header.safetensors
mkfifo fifo.npy
bad_q() {
    refused "$2" run --q "$1" --k f32-k.npy --v f32-v.npy "${causal[@]}" "${out[@]}"
}
bad_q none.npy 'none.npy: No such file'
bad_q . 'neither in .npy'
bad_q out/../fifo.npy 'not a regular file'
bad_q f32-q.npy:x 'neither in .npy'
bad_q empty.npy 'not a .npy'
bad_q garbage.npy 'not a .npy'
bad_q header-cut.npy truncated
bad_q cut.npy truncated
bad_q huge.npy truncated
bad_q oversized.npy 'past the end'
bad_q overflow.npy overflows
bad_q negative.npy negative
bad_q big-endian.npy 'big endian'
bad_q fortran.npy Fortran
bad_q integers.npy 'i32'
bad_q one-axis.npy '[4]'
bad_q nothing.npy 'no elements'
bad_q none.safetensors:q 'No such file'
bad_q empty.safetensors:q 'not a .safetensors'
bad_q garbage.safetensors:q 'not a .safetensors'
bad_q header.safetensors:q 'not a .safetensors'
bad_q header-cut.safetensors:q truncated
bad_q cut.safetensors:q outside
bad_q long.safetensors:q 'belong to no tensor'
bad_q f32.safetensors '3 tensors'
bad_q f32.safetensors: 'no tensor is named'
bad_q f32.safetensors:x 'no tensor is named x; there are '
bad_q f16-q.npy '--dtype'
bad_q f64-q.npy '--dtype'
bad_q rank3-q.npy 'axes'
bad_q f32-v.npy 'q has 24 columns, k has 16'
bad_q "$(printf 'new\nline.npy')" 'No such file'
refused 'k has 16' run --q f32-v.npy --k f32-k.npy --v f32-k.npy "${causal[@]}" "${out[@]}"
refused 'heads' run --q f32-q.npy --k f32-q.npy --v f32-v.npy "${causal[@]}" "${out[@]}"

# ---- run: patterns ----
for spec in '' frob 'causal+' '(causal' 'window(1)' 'window(-1,2)' 'random(2,1)' 'causal causal' \
    'window(1,2' 'segments()' 'random(nan,1)' 'window(1e9999,1)' 'causal)'; do
    refused 'run: ' "${run[@]}" "${out[@]}" --pattern "$spec"
done
refused 'mask-i8.npy: elements are i8; a mask is bool or u8' "${run[@]}" "${out[@]}" --mask mask-i8.npy
refused '49 keys' "${run[@]}" "${out[@]}" --mask mask-short.npy
refused '3 heads: 1, 2 (of K) or 4 (of Q) are needed' "${run[@]}" "${out[@]}" --mask mask-heads.npy
refused '3 heads: 1 or 4 are needed' run --q f32-q.npy --k f32-q.npy --v f32-q.npy "${out[@]}" --mask mask-heads.npy
refused '2 batches: 1 is needed' run --q rank3-q.npy --k rank3-k.npy --v rank3-v.npy "${out[@]}" --mask mask4.npy
refused 'mask-padding.npy: shape [2,1,1,50]; a row for all queries, as of key padding, is to be repeated for each of the 50' \
    "${run[@]}" "${out[@]}" --mask mask-padding.npy
refused 'No such file' "${run[@]}" "${out[@]}" --mask none.npy
refused 'row 7' "${run[@]}" "${out[@]}" --topk topk-past.npy
refused 'row 7' "${run[@]}" "${out[@]}" --topk topk-below.npy
refused 'indices are i32 or i64' "${run[@]}" "${out[@]}" --topk topk-u8.npy
refused 'row 7' "${run[@]}" "${out[@]}" --topk topk-i64-past.npy
refused 'does not belong' "${run[@]}" "${out[@]}" --lists f32.safetensors
refused 'row 1' "${run[@]}" "${out[@]}" --lists lists-falling.safetensors --block 10x10
refused 'need [lists,' "${run[@]}" "${out[@]}" --lists lists-falling.safetensors --block 16x16
refused 'No such file' "${run[@]}" "${out[@]}" --lists none.safetensors

# ---- run: right answers ----
# agree NAME LIMIT ARGUMENTS...: fused and staged against the oracle, files of kind NAME.
agree() {
    local kind=$1 limit=$2 o l
    shift 2
    case $kind in
    npy) o=.npy l=.npy ;;
    *) o=.safetensors l=.safetensors:log ;;
    esac
    good run "$@" --pipeline oracle --out "out/ro$o" --lse "out/rl$l"
    for pipeline in fused staged; do
        good run "$@" --pipeline $pipeline --backend cpu --out "out/o$o" --lse "out/l$l"
        same "out/o$o" "out/ro$o" "$limit"
        same "out/l$l" "out/rl$l" 1e-5
    done
}
named() {
    echo --q "$1.safetensors:q" --k "$1.safetensors:k" --v "$1.safetensors:v"
}
arrays() {
    echo --q "$1-q.npy" --k "$1-k.npy" --v "$1-v.npy"
}
agree npy 2e-6 $(arrays f32) --pattern causal --block 16x16
agree npy 2e-3 $(arrays f16) --pattern 'window(7,3)' --block 8x8
agree npy 2e-6 $(arrays f64) --pattern dense
agree npy 2e-6 $(arrays rank3) --pattern 'random(0.3,1)' --block 4x4
agree safetensors 2e-3 $(named rank2) --pattern 'dilated(3,4)' --block 1x1
agree safetensors 2e-2 $(named bf16) --pattern 'longformer(8,2)' --block 16x8
agree npy 2e-2 $(named bf16) --pattern 'summary(4,8)' --block 5x7
agree safetensors 2e-3 $(named f64) --dtype f16 --pattern causal
agree safetensors 2e-6 $(named f32) --scale 0.5 --pattern 'blockdiag(10)'
agree npy 2e-6 $(arrays f16) --dtype f32 --pattern 'segments(10,20)' --threads 1
agree npy 2e-6 --q f64-q.npy --k f16-k.npy --v bf16.safetensors:v --dtype f32 --pattern causal
# K and V of 16 bits stay beside Q of f32.
mixed=(--q f32-q.npy --k f16-k.npy --v bf16.safetensors:v --topk topk2.npy)
good run "${mixed[@]}" --pipeline oracle --out out/ro.npy
good run "${mixed[@]}" --backend cpu --out out/o.npy
same out/o.npy out/ro.npy 2e-6
refused 'k_type or v_type' run "${mixed[@]}" --pipeline staged --out out/o.npy
for mask in mask2 mask3 mask4; do
    agree npy 2e-6 $(arrays f32) --mask $mask.npy --block 8x16
done
for topk in topk2 topk3; do
    agree npy 2e-6 $(arrays f32) --topk $topk.npy
done

# Score modifiers, each and all.
both=modifiers.safetensors
for pattern in 'causal --block 16x16' 'random(0.3,1) --block 4x4' 'window(7,3) --block 1x1'; do
    for modifiers in '--softcap 1.5' '--alibi standard' "--sink $both:sinks" '--dropout 0.3' \
        "--softcap 3 --alibi $both:slopes --sink $both:sinks --dropout 0.5 --dropout-seed 18446744073709551615"; do
        # shellcheck disable=SC2086
        agree npy 4e-6 $(arrays f32) --pattern $pattern $modifiers
    done
done
all="--softcap 3 --alibi standard --sink $both:sinks --dropout 0.5 --dropout-seed 7"
# shellcheck disable=SC2086
{
    agree npy 4e-3 $(arrays f16) --pattern causal $all
    agree safetensors 4e-2 $(named bf16) --pattern 'dilated(3,4)' --block 1x1 $all
}
agree npy 4e-6 $(arrays heads6) --pattern causal --alibi slopes6.npy
# changes 0|1 FILES ARGUMENTS...: whether these arguments change a bit of the output, or of the LSE.
good "${run[@]}" --pattern causal --out out/a.npy --lse out/al.npy
changes() {
    local o=$1 l=$2
    shift 2
    good run "$@" --pattern causal --out out/b.npy --lse out/bl.npy
    if [ "$o" = 1 ]; then differ out/a.npy out/b.npy 1e-3; else same out/a.npy out/b.npy 0; fi
    if [ "$l" = 1 ]; then differ out/al.npy out/bl.npy 1e-3; else same out/al.npy out/bl.npy 0; fi
}
changes 0 0 $(arrays f32) --softcap 0 --dropout 0 --dropout-seed 3 --sink sinks-none.npy
changes 1 1 $(arrays f32) --softcap 1
changes 1 1 $(arrays f32) --alibi standard
changes 1 0 $(arrays f32) --sink $both:sinks
changes 1 0 $(arrays f32) --dropout 0.1
good "${run[@]}" --pattern causal --dropout 0.1 --out out/a.npy --lse out/al.npy
changes 0 0 $(arrays f32) --dropout 0.1 --dropout-seed 0
changes 1 0 $(arrays f32) --dropout 0.1 --dropout-seed 1
# Slopes of the paper, and the same in files of four types.
good "${run[@]}" --pattern causal --alibi standard --out out/a.npy --lse out/al.npy
for slopes in slopes.npy slopes-f64.npy $both:slopes; do
    changes 0 0 $(arrays f32) --alibi "$slopes"
done
good run $(arrays heads6) --pattern causal --alibi standard --out out/a.npy --lse out/al.npy
changes 0 0 $(arrays heads6) --alibi slopes6.npy

# The same pattern by three ways, and the same answer from both formats.
good "${run[@]}" --pattern causal --out out/a.npy
good "${run[@]}" --mask mask2.npy --out out/b.npy
same out/a.npy out/b.npy 0
good "${run[@]}" --mask mask-u8.npy --out out/b.npy
same out/a.npy out/b.npy 0
good "${run[@]}" --topk topk2.npy --out out/b.npy
good "${run[@]}" --topk topk-i64.npy --out out/c.npy
same out/b.npy out/c.npy 0
good run $(named f32) --pattern causal --out out/c.safetensors:x
same out/a.npy out/c.safetensors:x 0
good "${run[@]}" --pattern 'window(4,0)' --out out/d.npy --lse out/dl.npy
good "${run[@]}" --topk topk2.npy --out out/e.npy --lse out/el.npy
same out/d.npy out/e.npy 2e-6
same out/dl.npy out/el.npy 2e-6
good "${run[@]}" --topk topk2.npy --out out/e.npy # over what is there
# By lists that are planned on the host.
good "${run[@]}" --topk topk2.npy --pipeline staged --out out/e.npy --lse out/el.npy
same out/d.npy out/e.npy 2e-6
same out/dl.npy out/el.npy 2e-6
# Of more indices a query than keys no plan is reserved: the host plans.
good "${run[@]}" --topk topk-padded.npy --out out/e.npy
same out/d.npy out/e.npy 2e-6
good run $(named f32) --dtype bf16 --pattern causal --out out/f.npy
good run $(named bf16) --pattern causal --out out/g.npy
same out/f.npy out/g.npy 0
good "${run[@]}" --pattern causal --threads 4096 --out out/t.npy
good "${run[@]}" --pattern causal --scale 0.25 --out out/h.npy # q has 16 columns
same out/a.npy out/h.npy 0
for pipeline in fused staged oracle; do
    good "${run[@]}" --pattern causal --scale 0.5 --pipeline $pipeline --out out/i.npy
    differ out/a.npy out/i.npy 1e-2
done
"$tessera" "${run[@]}" "${causal[@]}" "${out[@]}" --verbose 2>err && grep -q 'cpu' err ||
    fail 'run --verbose'

# ---- run: the backward ----
# gradients LIMIT ARGUMENTS...: fused and staged against the oracle, from an output and its LSE that the
# forward left; the gradient of the output is that of another pattern.
gradients() {
    local limit=$1
    shift
    good run "$@" --pattern dense --out out/do.npy
    good run "$@" "${backward_pattern[@]}" --out out/o.npy --lse out/l.npy
    good run "$@" "${backward_pattern[@]}" --backward --pipeline oracle --do out/do.npy --o out/o.npy \
        --lse out/l.npy --dq out/rq.npy --dk out/rk.npy --dv out/rv.npy
    for pipeline in fused staged; do
        good run "$@" "${backward_pattern[@]}" --backward --pipeline $pipeline --backend cpu --do out/do.npy \
            --o out/o.npy --lse out/l.npy --dq out/q.npy --dk out/k.npy --dv out/v.npy
        for tensor in q k v; do
            same out/r$tensor.npy out/$tensor.npy "$limit"
            differ out/r$tensor.npy out/do.npy 1e-2
        done
    done
}
backward_pattern=(--pattern 'window(7,3)' --block 8x8)
gradients 2e-5 $(arrays f32)
gradients 2e-2 $(arrays f16)
gradients 2e-5 $(arrays rank3) --scale 0.5
gradients 4e-5 $(arrays f32) --softcap 3 --alibi standard --sink $both:sinks --dropout 0.5 --dropout-seed 7
backward_pattern=(--topk topk2.npy)
gradients 2e-5 $(arrays f64)
backward_pattern=(--pattern causal --block 16x16)
gradients 2e-5 $(arrays f32) --threads 1
backward=(run --backward $(arrays f32) "${causal[@]}" --do out/do.npy --o out/o.npy --lse out/l.npy)
# One gradient alone has the bits that it has beside others.
good "${backward[@]}" --dq out/q.npy --dk out/k.npy --dv out/v.npy
good "${backward[@]}" --dq out/one.npy
same out/one.npy out/q.npy 0
good "${backward[@]}" --dk out/one.safetensors:x --dv out/two.safetensors
same out/one.safetensors:x out/k.npy 2e-6
same out/two.safetensors:dv out/v.npy 2e-6
good run --backward $(named bf16) "${causal[@]}" --dtype bf16 --do out/do.npy --o out/o.npy --lse out/l.npy \
    --dv out/one.npy # an o in f32 beside bf16
same out/one.npy out/v.npy 5e-2
"$tessera" "${backward[@]}" --dv out/one.npy --verbose 2>err && grep -q 'cpu' err || fail 'run --backward --verbose'
for option in --do --o --dq --dk --dv; do
    refused "$option goes with --backward" "${run[@]}" "${causal[@]}" --out out/x.npy $option out/x2.npy
done
refused '--out does not go with --backward' "${backward[@]}" --out out/x.npy --dq out/x2.npy
refused '--dq, --dk or --dv is needed' "${backward[@]}"
refused '--do is needed' run --backward $(arrays f32) "${causal[@]}" --dq out/x.npy
refused '--lse is needed' run --backward $(arrays f32) "${causal[@]}" --do out/do.npy --o out/o.npy --dq out/x.npy
refused 'o is [2,4,50,16]; q and v ask for [2,4,50,24]' run --backward $(arrays f32) "${causal[@]}" --do out/do.npy \
    --o f32-q.npy --lse out/l.npy --dq out/x.npy
refused '--dtype converts them' run --backward $(arrays f32) "${causal[@]}" --do f16-q.npy --o out/o.npy \
    --lse out/l.npy --dq out/x.npy
refused '[B,H,N], [H,N] or [N] is needed' run --backward $(arrays f32) "${causal[@]}" --do out/do.npy --o out/o.npy --lse f32-q.npy --dq out/x.npy
refused '--dq and --dv name the same file' "${backward[@]}" --dq out/x.npy --dv out/x.npy
refused 'folder' "${backward[@]}" --dk none/x.npy
rm -rf out && mkdir out

# ---- pattern ----
pattern=(pattern --pattern causal --n 8 --block 2x2)
good "${pattern[@]}" --ascii
grep '[|+]' std >drawn
cat >wanted <<'END'
+----------------+
|@@              |
|@@@@            |
|@@@@@@          |
|@@@@@@@@        |
|@@@@@@@@@@      |
|@@@@@@@@@@@@    |
|@@@@@@@@@@@@@@  |
|@@@@@@@@@@@@@@@@|
+----------------+
END
checks=$((checks + 1))
diff wanted drawn >err || fail 'the drawing of causal'
says 'density         56.25 % (36 pairs)'
says 'tiles           6 full, 4 band, 0 bitmask'
says 'empty rows      0'
# What the pictures show, read back: queries go down, keys to the right.
svg_cells() { # FILE ROWS COLUMNS: of tiles of one element each
    awk -F'"' -v rows="$2" -v columns="$3" '
        function edge() { printf "+"; for (x = 0; x < 2 * columns; x++) printf "-"; print "+" }
        /scale\(/ { inside = 1 }
        /stroke=/ { inside = 0 }
        inside && /^<rect x="/ {
            for (y = $4; y < $4 + $8; y++) for (x = $2; x < $2 + $6; x++) listed[y, x] = 1
        }
        END {
            edge()
            for (y = 0; y < rows; y++) {
                printf "|"
                for (x = 0; x < columns; x++) printf listed[y, x] ? "@@" : "  "
                print "|"
            }
            edge()
        }' "$1"
}
cat >wanted4 <<'END'
+----------------+
|@@@@@@@@@@      |
|@@@@@@@@@@@@    |
|@@@@@@@@@@@@@@  |
|@@@@@@@@@@@@@@@@|
+----------------+
END
good "${pattern[@]}" --bare --png out/p.png
shows wanted "$built/read_files" png out/p.png 8 8
# Around the same picture, in words: what it is, its sizes, its axes.
words=('causal' '8 x 8, blocks 2x2, 56.25 % listed, list 1 of 2' key query 0 2 4 6 8)
good pattern --pattern 'causal&random(1,1)' --n 8 --block 2x2 --heads 2 --head 1 --png out/w.png \
    --svg out/w.svg
checks=$((checks + 2))
"$built/read_files" find out/p.png out/w.png 2>err || fail 'the picture is not the bare one'
! "$built/read_files" words out/w.png 'causal&random(2,1)' 2>err || fail 'any words will do'
for word in 'causal&random(1,1)' "${words[@]:1}"; do
    checks=$((checks + 2))
    "$built/read_files" words out/w.png "$word" 2>err || fail "the PNG does not say $word"
    sed 's/&amp;/\&/g' out/w.svg | grep -qF ">$word</text>" || fail "the SVG does not say $word"
done
good "${pattern[@]}" --bare --svg out/w.svg
checks=$((checks + 1))
! grep -q '<text' out/w.svg || fail 'a bare SVG with words'
good pattern --mask mask2.npy --png out/w.png
checks=$((checks + 1))
"$built/read_files" words out/w.png mask2.npy 2>err || fail 'the PNG does not name the mask'
rm out/w.png out/w.svg
refused '--png out/p.jpg: a name that ends with .png is needed' "${pattern[@]}" --png out/p.jpg
refused '--svg out/p.png: a name that ends with .svg is needed' "${pattern[@]}" --svg out/p.png
refused '--png .png: a name' "${pattern[@]}" --png .png
good pattern --pattern causal --n 8 --block 1x1 --svg out/p.svg
shows wanted svg_cells out/p.svg 8 8
good pattern --pattern causal --n 4 --nkv 8 --block 1x1 --bare --png out/p.png
good pattern --pattern causal --n 4 --nkv 8 --block 1x1 --svg out/p.svg
shows wanted4 "$built/read_files" png out/p.png 4 8
shows wanted4 svg_cells out/p.svg 4 8
checks=$((checks + 1))
grep -q '>key</text>' out/p.svg && grep -q 'rotate(-90.*>query</text>' out/p.svg ||
    fail 'the axes of the SVG'
refused '--n is needed' pattern --pattern causal
refused 'a pattern is needed' pattern --n 8
refused '--n x' pattern --pattern causal --n x
refused '--n 0' pattern --pattern causal --n 0
refused '--head 1: lists are numbered from 0, and there are 1' "${pattern[@]}" --head 1 --ascii
refused 'folder' "${pattern[@]}" --png none/p.png
refused 'folder' "${pattern[@]}" --export none/p.safetensors
refused 'queries' pattern --mask mask2.npy --n 49
refused 'at offset 7' pattern --pattern 'causal+frob' --n 8 --svg out/p.svg

# Pictures: a signature of each format, at small and large sizes.
for spec in causal 'window(256,256)' 'random(0.1,1)' 'dilated(3,5)&causal'; do
    for n in 1 33 700 3000; do
        good pattern --pattern "$spec" --n $n --nkv $((n / 2 + 1)) --block 16x32 --png out/p.png \
            --svg out/p.svg --ascii
        checks=$((checks + 2))
        [ "$(head -c 4 out/p.png | tail -c 3)" = PNG ] || fail "no PNG of $spec $n"
        head -c 4 out/p.svg | grep -q '<svg' && tail -n 1 out/p.svg | grep -q '</svg>' ||
            fail "no SVG of $spec $n"
    done
done

# Lists out and in again: the same pattern, the same answer.
export_spec='window(9,2)+random(0.2,3)&causal'
good pattern --pattern "$export_spec" --n 50 --block 8x8 --heads 4 --batch 2 --ascii \
    --head 7 --export out/l.safetensors
cp std first
good pattern --lists out/l.safetensors --ascii --head 7
checks=$((checks + 1))
diff first std >err || fail 'exported lists read back'
good "${run[@]}" --pattern "$export_spec" --block 8x8 --out out/a.npy
good "${run[@]}" --lists out/l.safetensors --out out/b.npy
same out/a.npy out/b.npy 0
refused 'block_q = 8' "${run[@]}" --lists out/l.safetensors --block 16x16 --out out/c.npy
good pattern --pattern "$export_spec" --n 50 --block 8x8 --heads 3 --export lists3.safetensors
refused '3 heads' "${run[@]}" --lists lists3.safetensors "${out[@]}"
good pattern --pattern causal --n 49 --export lists49.safetensors
refused 'n_q = 49' "${run[@]}" --lists lists49.safetensors "${out[@]}"

# Blocks that are chosen, of scores or of q and k: what is exported is what runs.
select=(--select 'topk(2)+last(1)&causal' --block 8x8)
good pattern "${select[@]}" --q f32-q.npy --k f32-k.npy --export out/s.safetensors
says 'lists           8 (batch 2, heads 4)'
good "${run[@]}" "${select[@]}" --out out/a.npy
good "${run[@]}" --lists out/s.safetensors --out out/b.npy
same out/a.npy out/b.npy 0
good pattern --select 'topk(3)' --scores f32-q.npy --block 1x4
says 'queries x keys  50 x 64'
says 'density         18.75 %'
good pattern --select 'topk(99)' --scores f32-q.npy --block 1x4
says 'density         100 %'
for bad in '+first(1)' 'topk' 'topk(0)' 'topk(1.5)' 'topk(3)topk(3)' 'topk(3)+causal' 'topk(3)&causal&causal' 'threshold(x)' \
    'threshold(inf)' 'frob(1)' ''; do
    refused 'expected' pattern --select "$bad" --scores f32-q.npy
done
refused 'p is not above 0' pattern --select 'top_p(2)' --scores f32-q.npy
refused 'needs --scores' pattern --select 'topk(3)'
refused 'go with each other' pattern --select 'topk(3)' --q f32-q.npy
refused 'go with each other' pattern --pattern causal --n 9 --q f32-q.npy --k f32-k.npy
refused '--scores goes with' pattern --pattern causal --n 9 --scores f32-q.npy
refused '9 queries' pattern --select 'topk(3)' --scores f32-q.npy --n 9
refused 'scores are f16' pattern --select 'topk(3)' --scores topk2.npy
refused 'made for 50 queries' pattern "${select[@]}" --q f32-q.npy --k f32-k.npy --n 9

# Files that are one and the same.
refused 'same file' "${pattern[@]}" --svg out/s.svg --export ./out/../out/s.svg
refused 'same file' bench n=64,d=8 --json out/s --csv out/./s

# What memory cannot hold is refused at once. (A sanitizer ends the program at such sizes.)
if ! grep -q __asan_init "$tessera"; then
    began=$SECONDS
    refused 'memory ran out' plan n=2000000000,pattern=dense,block=1x1
    refused 'memory ran out' pattern --pattern dense --n 2147483647 --block 1x1 --png out/s.png
    refused 'memory ran out' pattern --pattern 'random(0.5,1)' --n 1000000 --block 1x1
    refused 'memory ran out' pattern --pattern causal --n 2000000 --block 1x1 --svg out/s.svg
    checks=$((checks + 1))
    [ $((SECONDS - began)) -lt 20 ] || fail "refusals took $((SECONDS - began)) s"
fi

# Runs that are cut short leave nothing. (set -m: a background job then heeds SIGINT.)
set -m
for signal in INT TERM; do
    checks=$((checks + 1))
    before=$(ls -A out)
    "$tessera" bench n=4096,d=64 --seconds 600 --json out/b.json --csv out/b.csv >std 2>err &
    sleep 1
    kill -$signal $!
    wait $! 2>err
    [ $? -gt 128 ] && [ "$(ls -A out)" = "$before" ] || fail "bench ended by SIG$signal"
done
set +m
checks=$((checks + 1))
(ulimit -f 64 && "$tessera" pattern --pattern dense --n 2000 --block 10x10 --export out/b.safetensors) \
    >std 2>err
[ $? -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] && [ "$(ls -A out)" = "$before" ] ||
    fail 'a file that may not grow so large'

# A million tokens: the work grows with the tiles.
good pattern --pattern 'window(256,256)' --n 1000000 --png out/p.png --svg out/p.svg --ascii

# ---- verify ----
good verify -n 30
says 'verify: 30 cases, 30 passed, 0 failed (seed 1)'
good verify -n 3 --list
says 'pattern='
good verify n=16,d=8,pipeline=fused,kernel=cpu_attention_portable n=17,d=8,pipeline=fused
says '  cpu_attention_portable              2 cases, worst error/bound '
nearest=$(sed -n "s/^  nearest to its bound: tessera verify '\(.*\)'$/\1/p" std)
good verify "$nearest"
says "nearest to its bound: tessera verify '$nearest'"
good verify n=16,d=8,pipeline=fused,kernel=cpu_attention_portable
says '  cpu_attention_portable              1 cases, worst error/bound '
for name in $("$tessera" info --kernels | grep -o 'cpu_attention_[a-z0-9]*' | grep -v portable); do
    grep -Eq "^  $name +(ran in no case|skipped: )" std || fail "verify does not name $name"
done
checks=$((checks + 1))
good verify n=16,d=8,seed=13 --threads 2
says 'verify: 1 cases, 1 passed, 0 failed'
good verify n=40,d=8,block=8x8,pattern=causal,softcap=2,alibi=1,sink=1,dropout=0.25
says 'verify: 1 cases, 1 passed, 0 failed'
says 'softcap=2,alibi=1,sink=1,dropout=0.25'
# Lists on the device: the sweep's, and cases that repeat themselves.
good verify --lists -n 40
says 'verify: 40 cases, 40 passed, 0 failed (seed 1)'
nearest=$(sed -n "s/^  nearest to its bound: tessera verify '\(.*\)'$/\1/p" std)
good verify "$nearest"
says "nearest to its bound: tessera verify '$nearest'"
good plan h=16,hkv=1,lists=kv,n=8,nkv=300,d=32,topk=20,backend=cpu
says 'capacity 20'
for bad in 'pattern does not go:pattern=causal' 'source does not go:source=mask' 'staged pipeline:pipeline=staged' \
    'backward has no:op=backward' 'at most 4:form=ranges' 'valid is a share:valid=1.5' 'dv of at most d:vink=1,dv=80' \
    'letters of:entries=xyz'; do
    refused "${bad%%:*}" verify "n=8,topk=5,${bad#*:}"
done
refused 'at most as many entries as block columns' verify n=4,topk=5
good verify n=4,topk=5,form=rows,block=1x1,backend=cpu
# MLPs likewise, with a plan and a measurement.
good verify --mlps -n 30
says 'verify: 30 cases, 30 passed, 0 failed (seed 1)'
nearest=$(sed -n "s/^  nearest to its bound: tessera verify '\(.*\)'$/\1/p" std)
good verify "$nearest"
says "nearest to its bound: tessera verify '$nearest'"
good plan n=130,nkv=264,d=32,block=64x1,pattern='random_row(0.3,1)',op=mlp,backend=cpu
says 'fused MLP on cpu'
good bench --seconds=0.01 n=130,nkv=264,d=32,block=64x1,pattern='random_row(0.3,1)',op=mlp,bias=ho,cache=delta,backend=cpu
says op=mlp,bias=ho,cache=delta
for bad in 'goes with op=mlp:cache=delta' 'softcap does not go:op=mlp,softcap=2' 'h=1, pipeline=fused:op=mlp,h=2' \
    'fill=positive:op=mlp,fill=large' 'base=add:op=mlp,base=merge' 'without cache=store:op=mlp,base=add,cache=store'; do
    refused "${bad%%:*}" verify "n=8,${bad#*:}"
done
# Second views, and o in f32.
good verify n=9,h=2,nkv=70,d=32,dv=16,dtype=bf16,rope=8,out32=1,backend=cpu n=9,h=2,d=32,rope=16,kvtype=e4m3,seed=1,backend=cpu
says 'verify: 2 cases, 2 passed, 0 failed'
good verify --list n=9,d=32,dv=16,rope=8,dtype=f16,out32=1
says ',out32=1,rope=8'
good plan n=9,h=2,d=32,rope=8,dtype=f16,out32=1,backend=cpu
for bad in 'is not below d=32:rope=32' 'dv of at most d - rope:rope=8,vink=1' 'op=attention:rope=8,pipeline=staged' \
    'fill=positive:rope=8,fill=large' 'pipeline=fused:dtype=f16,out32=1,pipeline=staged'; do
    refused "${bad%%:*}" verify "n=4,d=32,${bad#*:}"
done
good verify "h=2,n=90,nkv=130,d=16,block=16x8,backend=cpu,select=topk(4)+first(1)&causal" \
    "h=2,n=40,nkv=130,d=16,block=8x8,backend=cpu,select=threshold(0.3)+last(2),form=bits" \
    "h=2,n=70,nkv=90,d=16,block=16x16,backend=cpu,pattern=window(9,3),form=mask"
says 'verify: 3 cases, 3 passed, 0 failed'
good verify --list "n=90,select=topk(1)&causal"
says ',select=topk(1)&causal,cut=causal'
for bad in 'select does not go:topk=3' 'pattern does not go:pattern=causal' 'right within a bound:select=top_p(0.5)' \
    'is expected:select=topk' 'above the block columns:select=topk(3)' 'form=bits can be chosen:form=rows' \
    'valid goes with topk=:valid=0.5'; do
    refused "${bad%%:*}" verify "n=8,${bad#*:}$([[ $bad == *select=* ]] || echo ',select=topk(1)')"
done
for key in valid=0.5 form=bits entries=u cut=causal; do
    refused 'goes with topk=' verify "n=4,$key"
done

# fails CASE: a verify with a planted fault finds it in the staged pipeline; the line to repeat it
# is left in the variable repro.
fails() {
    checks=$((checks + 1))
    "$built/verify_fails" "$1" >std 2>err
    local status=$?
    repro=$(sed -n "s/^FAILED tessera verify '\(.*\)'\$/\1/p" std)
    if [ $status -ne 1 ] || [ -s err ]; then
        fail "status $status: a failing verify $1"
    fi
    case $repro in
    *$'\n'* | '') fail "not one line to repeat $1: $repro" ;;
    *n=17,*pipeline=staged*seed=13*) ;;
    *) fail "the line to repeat $1: $repro" ;;
    esac
}
fails n=17,d=8,h=2,seed=13,backend=cpu,kernel=cpu_spmm_portable # one run that can fail
says 'verify: 1 cases, 0 passed, 1 failed'
says 'the planted fault'
first=$repro
fails "$first"
[ "$repro" = "$first" ] || fail "'$first' repeats as '$repro'"
good verify "$first"
good verify n=4096,d=8,h=1,block=4x4,pattern='window(9,9)',backend=cpu,threads=4096 # as many as are legal
checks=$((checks + 1))
"$built/verify_fails" n=17,d=8,seed=12,backend=cpu >std 2>err || fail 'verify without a fault'

# Cases of a file: comments, alternatives, and words beside it.
printf '%s\n' '# all' '' '  n={16,17},d=8,pattern={causal,random(0.5,1)} # four' 'n=18,d=8' >cases.txt
good verify --backend cpu --cases cases.txt n=19,d=8
says 'verify: 6 cases, 6 passed, 0 failed'
good verify --list --cases cases.txt
checks=$((checks + 1))
[ "$(grep -o ',n=[0-9]*\|pattern=[^(,]*' std | tr -d '\n')" = \
    ,n=16pattern=causal,n=16pattern=random,n=17pattern=causal,n=17pattern=random,n=18pattern=dense ] ||
    fail 'the cases of a file'
refused 'none.txt' verify --cases none.txt
refused 'no cases' verify --cases /dev/null
refused 'given twice' verify --cases cases.txt --cases cases.txt
for line in 'n=16,frob=1' 'n={16,17' 'n={16,}' 'n=16 n=17'; do
    printf '# all\n%s\n' "$line" >bad.txt
    refused 'bad.txt:2: ' verify --cases bad.txt
done
# The files of cases that need a GPU are read here too.
for file in "$repository"/tests/cases/*.txt; do
    good verify --list --cases "$file"
    checks=$((checks + 1))
    [ "$(wc -l <std)" -ge "$(grep -c '^[^#]' "$file")" ] || fail "the cases of $file"
done
# Where stderr is no terminal, a line after 15 s says how far it is and what comes next; each run looks
# at the clock, which runs ahead from the second case on. In less time there is none.
checks=$((checks + 1))
"$built/verify_fails" n=16,d=8,backend=cpu n=17,d=8,seed=14,backend=cpu n=18,d=8,backend=cpu >std 2>err ||
    fail 'a slow verify'
{ [ "$(wc -l <err)" -ge 2 ] && ! grep -qvE '^verify: [12] of 3 cases, 0 failed, next b=1,.*n=1[78],' err &&
    grep -q '^verify: 2 of 3 cases, 0 failed, next b=1,.*n=18,' err; } || fail 'the progress of a slow verify'
checks=$((checks + 1))
"$built/verify_fails" n=16,d=8,backend=cpu >std 2>err && [ ! -s err ] || fail 'the progress of a fast verify'

# ---- the backward in plan, verify, bench and gradcheck ----
backward=n=40,h=2,d=8,block=8x8,pattern=causal,op=backward
good verify "$backward,alibi=1,sink=1,grads=qkvas,dlse=1,backend=cpu" "$backward,given=delta" "$backward,dtype=bf16,orest=1,out32=1"
says 'verify: 3 cases, 3 passed, 0 failed'
says 'op=backward'
good verify --list "$backward,alibi=1,grads=aq,dlse=1,given=o32,out32=1"
says ',op=backward,grads=qa,dlse=1,given=o32,out32=1'
good verify --list -n 60
says 'op=backward'
good verify --list --backend cuda -n 60
for drawn in alibi= softcap= dropout= op=backward; do
    says "$drawn"
done
good plan "$backward,backend=cpu"
says 'tess_attention_backward takes the '
for wrong in grads=q dlse=1 orest=1 given=delta; do
    refused "${wrong%=*} goes with op=backward" plan "n=40,d=8,$wrong"
done
refused 'letters of qkvas' plan "$backward,grads=qx"
refused 'letters of qkvas' plan "$backward,grads=qq"
refused 'a goes with alibi=1' plan "$backward,grads=qa"
refused 's goes with sink=1' plan "$backward,grads=s"
refused 'orest=1 goes with given=o' plan "$backward,orest=1,given=delta"
refused 'op=sideways' plan op=sideways
good gradcheck n=12,h=2,hkv=1,d=4,block=4x4,pattern=causal,alibi=1,sink=1,softcap=2,dropout=0.3,grads=qkvas,dlse=1,op=backward
says 'cpu staged     d_sink   ok'
good gradcheck n=12,h=1,d=4 --backend cpu --pipeline fused --elements 3 --directions 2
checks=$((checks + 1))
! grep -q staged std || fail 'gradcheck --pipeline fused'
checks=$((checks + 1))
"$built/gradcheck_fails" n=12,h=2,d=4,seed=13 >std 2>err
[ $? -eq 1 ] && [ ! -s err ] && grep -q '^  cpu fused      d_k      FAILED' std &&
    ! grep -q '^  oracle.*FAILED' std || fail 'a fault that gradcheck is to find'
refused 'a case is needed' gradcheck
refused 'nothing to check' gradcheck n=12 --elements 0 --directions 0
refused 'dtype=f32 is needed' gradcheck dtype=bf16,n=12
refused 'op=backward is what is checked' gradcheck op=attention,n=12
refused 'fill=normal or fill=positive' gradcheck fill=inf,n=12
refused 'too large' gradcheck n=4096
refused '--pipeline oracle: fused or staged' gradcheck n=12 --pipeline oracle
refused 'cpu or cuda' gradcheck n=12 --backend tpu

# ---- verify and bench: bad input ----
for command in verify bench gradcheck; do
    refused frob $command frob=1
    refused "unrecognized option '--frob'" $command --frob
done
refused none bench --sweep none.txt
refused 'no sweep' bench --sweep /dev/zero
yes '# nothing' | head -n 100001 >long.txt
refused 'no sweep' bench --sweep long.txt
refused none bench n=64,d=8 --json none/b.json
refused 'cpu or cuda' verify --backend tpu
if "$tessera" info | grep -q '^cuda *none'; then
    refused 'no device' verify --backend cuda
    refused 'no device' bench backend=cuda,n=64,d=8
fi

echo "tool.sh: $checks checks, $failures failed"
[ "$failures" -eq 0 ]
