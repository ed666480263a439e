#!/bin/bash
# Drives `tessera bench` through good and bad input on the CPU: tests/scripts/bench.sh path/to/tessera
# shellcheck disable=SC2015
set -u
repository=$(realpath "$(dirname "$0")/../..")
# shellcheck source=tests/scripts/checks.sh
. "$repository/tests/scripts/checks.sh"
small='backend=cpu,pipeline=fused'

# ---- rows ----
cat >sweep.txt <<'END'
# causal: n (n + 1) / 2 pairs a head
h=2,n=64,d=8,pattern=causal,block=16x16,backend=cpu

b=2,h=3,hkv=1,n=50,d=8,dv=24,dtype=bf16,pattern=blockdiag(10),backend=cpu,pipeline=staged # 5 x 100
END
cat >measured <<'END'
8x8 dense f32 cpu fused 64
20x30 window(3,0) f32 cpu fused 80
64x64 causal f32 cpu fused 4160
64x64 causal f32 cpu staged 4160
50x50 blockdiag(10) bf16 cpu staged 3000
END
first='h=1,n=20,nkv=30,d=4,pattern=window(3,0),backend=cpu,pipeline=fused'
good bench --seconds 0 h=1,n=8,d=4,backend=cpu,pipeline=fused "$first" --sweep sweep.txt \
    --json out/b.json --csv out/b.csv
shows measured "$built/read_files" bench out/b.json out/b.csv
# What fails after some were measured leaves the files as they were.
cp out/b.json b.json
refused frob bench --seconds 0 "$first" 'n=64,d=8,pattern=frob' --json out/b.json --csv out/b.csv
refused none bench --seconds 0 "$first" 'n=64,d=8,kernel=none' --json out/b2.json --csv out/b2.csv
checks=$((checks + 1))
cmp b.json out/b.json >err 2>&1 || fail 'a failed bench wrote its output'

# ---- stages and baselines ----
good bench --seconds 0 --baseline naive_cpu \
    "h=4,hkv=2,b=2,n=33,nkv=20,d=5,dv=9,pattern=causal,backend=cpu" \
    "h=2,n=24,d=8,block=8x8,pattern=blockdiag(8),backend=cpu,pipeline=staged" \
    --json out/b.json --csv out/b.csv
cat >measured <<'END'
33x20 causal f32 cpu fused 1680
33x20 causal f32 cpu staged 1680
33x20 causal f32 cpu dense 5280
24x24 blockdiag(8) f32 cpu staged 384
24x24 blockdiag(8) f32 cpu dense 1152
END
shows measured "$built/read_files" bench out/b.json out/b.csv
says 'sddmm '
says 'ours is '
# field NAME: of every row of out/b.json: its text, "number" or "null".
field() {
    "$built/read_files" field out/b.json "$1"
}
printf '%s\n' null number number number number >wanted
shows wanted field sddmm_ms
printf '%s\n' null null number null number >wanted
shows wanted field speedup
printf '%s\n' hot hot hot hot hot >wanted
shows wanted field timing
if [ "$(uname -m)" = x86_64 ]; then # whose levels have loops of multiply-adds
    printf '%s\n' number number null number null >wanted
    shows wanted field peak_share
    shows wanted field over_floor
    says ' % of the peak, which is '
fi
# A CPU's plans predict the time of one thread.
good bench --seconds 0 "n=16,d=4,$small" "n=16,d=4,threads=1,$small" --json out/b.json
printf '%s\n' null number >wanted
shows wanted field predicted_ms
says '  predicted '
# Noise takes five runs, which are made of all but slow work.
good bench --seconds 0 "n=16,d=4,$small" --json out/b.json
printf '%s\n' number >wanted
shows wanted field noise
# A bound that cannot be met takes ten times as long.
began=$(date +%s%N)
good bench --seconds 0.06 --repeat-until 1e-9 "n=1024,d=64,$small" --json out/b.json
checks=$((checks + 2))
[ $((($(date +%s%N) - began) / 1000000)) -ge 600 ] || fail 'not repeated until'
[ "$(field commit)" != text ] && [ "$(field commit | wc -c)" -gt 6 ] || fail 'no commit'
refused --repeat-until bench --repeat-until 2 "n=8,d=4,$small"
# What is not here is named, and no error.
if "$tessera" info | grep -q '^cuda *none'; then
    good bench --seconds 0 --baseline tiled,cublas,cusparse "n=16,d=4,$small" --json out/b.json
    says 'dense_tiled: no device'
    says 'dense_cublas: no device'
    says 'cusparse_spmm_ell: no device'
    {
        echo
        for _ in tiled cublas sddmm_csr sddmm_bsr spmm_csr spmm_csr_2 spmm_bsr spmm_ell; do
            echo 'no device'
        done
    } >wanted
    shows wanted field note
fi
good bench --seconds 0 --baseline naive_cpu "n=16,d=4,dtype=bf16,$small" --json out/b.json
says 'naive_cpu: f32 only'
# Where OpenBLAS is, its answers are held against the oracle before it is timed.
good bench --seconds 0 --baseline openblas "b=2,h=4,hkv=2,n=40,nkv=33,d=8,dv=5,scale=0.5,$small" \
    --json out/b.json
if [ "$(field note | tail -1)" ]; then
    says 'dense_openblas: libopenblas.so.0 is not here'
else
    says 'ours is '
fi
for shape in "n=40,nkv=32,block=8x16" "n=24,block=8x8,dtype=f16" "n=20,block=8x8"; do
    good bench --seconds 0 --baseline openblas_blocks --json out/b.json \
        "b=2,h=4,hkv=2,$shape,d=8,dv=5,pattern=random(0.4,1),lists=kv,scale=0.5,$small"
    field note | tail -1
done >all
printf '%s\n' '' 'f32 only' 'whole and full tiles only' >wanted
checks=$((checks + 1))
sed 's/^libopenblas.so.0 is not here$//' all | cmp -s wanted - || { cp all err; fail 'blocks_openblas'; }
# Times of dense attention are taken from a row of the same sizes, whatever the pattern.
good bench --seconds 0 --baseline naive_cpu "n=40,d=4,pattern=causal,$small" \
    "n=40,d=4,block=8x8,pattern=window(3,3),$small" "n=40,d=4,fill=subnormal,$small" \
    --json out/b.json
checks=$((checks + 1))
for name in ms ms_min ms_max; do
    "$built/read_files" numbers out/b.json $name
done | paste - - - - - - | awk '{ for (i = 1; i <= 6; i++) row[i] = row[i] " " $i }
    END { for (i = 1; i <= 6; i++) print row[i] }' >all
[ "$(sed -n 2p all)" = "$(sed -n 4p all)" ] && [ "$(sed -n 2p all)" != "$(sed -n 6p all)" ] ||
    fail 'the times of dense attention'

# ---- score modifiers ----
# Dense baselines and OpenBLAS's products have none.
modified="b=2,h=2,n=32,d=8,block=8x8,softcap=30,alibi=1,sink=1,dropout=0.25"
good bench --seconds 0 --baseline naive_cpu,openblas_blocks --stages "n=16,d=4,$small" \
    "$modified,backend=cpu" --json out/b.json --csv out/b.csv
says 'naive_cpu: no score modifiers'
says 'blocks_openblas: no score modifiers'
says 'softcap=30,alibi=1,sink=1,dropout=0.25'
for field in '"softcap": 30.0' '"alibi": 1' '"sink": 1' '"dropout": 0.25'; do
    checks=$((checks + 1))
    [ "$(grep -c "$field," out/b.json)" -eq 4 ] || fail "not in the rows: $field"
done

# ---- the backward ----
backward="n=32,h=2,d=8,block=8x8,alibi=1,sink=1,op=backward,backend=cpu"
good bench --seconds 0 "$backward,grads=qkvas,dlse=1" "$backward,grads=q,dtype=bf16,given=delta" \
    --json out/b.json
checks=$((checks + 1))
[ "$(grep -c '"op": "backward",' out/b.json)" -eq 4 ] || fail 'the rows of the backward'
refused 'take --stages, --layer and --baseline away' bench --stages "$backward"
refused 'take --stages, --layer and --baseline away' bench --baseline naive_cpu "$backward"
refused 'orest=1 and given=o32 are not measured' bench "$backward,orest=1"

# ---- seeds past what JSON's integers hold ----
far=9223372036854775809
good bench --seconds 0 "n=16,d=4,seed=$far,$small" --json out/b.json --csv out/b.csv
checks=$((checks + 1))
grep -qF "\"seed\": \"$far\"" out/b.json && grep -qF ",\"$far\"," out/b.csv ||
    fail "the seed $far is written as another"

# ---- sweeps ----
cat >sweep.txt <<'END'
# two sizes, two patterns
  --stages  h=1,n={16,24},d=4,pattern={random({0.5,1},1),window(1,0)},backend=cpu,pipeline=staged	#6
--hot h=1,n=8,d=4,backend=cpu,pipeline=fused
END
good bench --seconds 0 --sweep sweep.txt --json out/b.json --csv out/b.csv
cat >measured <<'END'
16x16 random(0.5,1) f32 cpu staged 256
16x16 random(1,1) f32 cpu staged 256
16x16 window(1,0) f32 cpu staged 31
24x24 random(0.5,1) f32 cpu staged 576
24x24 random(1,1) f32 cpu staged 576
24x24 window(1,0) f32 cpu staged 47
8x8 dense f32 cpu fused 64
END
sed -i '/random(0.5,1)/s/ [0-9]*$//' measured
shows_rows() {
    "$built/read_files" bench out/b.json out/b.csv | sed '/random(0.5,1)/s/ [0-9]*$//'
}
shows measured shows_rows
printf '%s\n' number number number number number number null >wanted
shows wanted field spmm_ms
bad_line() {
    printf '\n%s\n' "$1" >bad.txt
    refused "$2" bench --sweep bad.txt
    grep -qF 'bad.txt:2: ' err || fail "no line is named: $1"
}
# What this machine lacks is skipped, and counted.
cat >lacks.txt <<'END'
n={8,16},d=4,h=1,backend=cuda,pipeline=fused
n=8,d=4,h=1,backend=cpu,pipeline=fused
n=2147483647,nkv=2147483647,d=65536,h=64,backend=cpu
END
good bench --seconds 0 --sweep lacks.txt --json out/b.json
says 'peak: of multiply-adds alone'
if "$tessera" info | grep -q '^cuda *none'; then
    says 'bench: 3 of 4 cases are skipped (the first: cuda: no device here)'
    echo n=8,backend=cuda >none.txt
    refused 'all 1 cases are skipped: cuda: no device here' bench --sweep none.txt
else
    says 'bench: 1 of 4 cases are skipped (the first: this case needs about'
fi
checks=$((checks + 1))
[ "$("$built/read_files" field out/b.json ms | grep -c number)" -ge 1 ] || fail 'none is measured'
! "$tessera" info | grep -q '^cuda *none' ||
    refused 'no device here' bench n=8,backend=cuda,pipeline=fused
bad_line 'n=8,frob=1' frob
bad_line 'n={8,16,frob' "without its '}'"
bad_line 'n={8,frob}' frob
bad_line '--frob n=8' "unrecognized option '--frob'"
bad_line '--stages' 'where the case has nothing'
bad_line "n=8,pattern=$(printf 'x%.0s' {1..3000})" 'a line of more than'
bad_line "$(printf -- '--hot %.0s' {1..20})n=8" 'more than 16 options'
for sweep in "$repository"/bench/sweeps/*.txt; do
    checks=$((checks + 1))
    "$tessera" bench --sweep "$sweep" --time-limit 0.000001 >std 2>err
    status=$?
    [ $status -eq 0 ] || grep -q 'no device here' err || fail "$sweep"
done

# ---- going on ----
cases=("n=8,d=4,$small" "n=9,d=4,$small" "n=10,d=4,$small")
good bench --resume --seconds 0 "${cases[@]:0:2}" --json out/r.json --csv out/r.csv
cp out/r.csv first
good bench --resume --seconds 0 "${cases[@]}" --json out/r.json --csv out/r.csv
checks=$((checks + 2))
head -n 3 out/r.csv | diff first - >err || fail 'measured again'
[ "$(wc -l <out/r.csv)" -eq 4 ] || fail 'not four lines'
"$built/read_files" bench out/r.json out/r.csv >measured || fail 'the files of a resumed bench'
cp out/r.csv first
good bench --resume --json out/r.json --csv out/r2.csv # none measured: the CSV of the JSON
shows first cat out/r2.csv
good bench --resume --time-limit 0.000001 "${cases[@]}" "n=11,d=4,$small" --json out/r.json
says 'bench: 1 of 4 cases are left'
good bench --resume --seconds 0 --stages "n=8,d=4,backend=cpu,pipeline=staged" --json out/r.json
checks=$((checks + 1))
[ "$(grep -c '"asked"' out/r.json)" -eq 4 ] || fail 'another method is another row'
refused --json bench --resume "${cases[@]}"
cp out/r.json r.json
for text in '' '{}' '[1]' '[{"asked": 1}]' '[{"asked": "a"}' garbage; do
    printf '%s' "$text" >out/r.json
    refused 'not a JSON array' bench --resume "${cases[@]}" --json out/r.json
done
# A row without a field has an empty cell for it.
sed '/"timing"/{x;s/^/x/;/^xx$/{x;d};x}' r.json >out/r.json
good bench --resume --json out/r.json --csv out/r2.csv
checks=$((checks + 1))
[ "$(grep -c timing out/r.json)" -eq 3 ] &&
    [ "$(sed 's/"[^"]*"//g' out/r2.csv | awk -F, '{ print NF }' | sort -u | wc -l)" -eq 1 ] ||
    fail 'lines of one CSV have different numbers of cells'
# What another version or machine measured is read, but not continued.
for field in version commit device; do
    sed "s/\"$field\": \"[^\"]*/&-/" r.json >out/r.json
    refused "out/r.json has a measurement of version" bench --resume "${cases[@]}" --json out/r.json
    good bench --resume --json out/r.json
done
cp r.json out/r.json
# What is measured before a failure is kept.
ends 2 bench --resume --seconds 0 "n=12,d=4,$small" 'n=8,d=4,pattern=frob,backend=cpu' \
    --json out/r.json
checks=$((checks + 1))
[ "$(grep -c '"asked"' out/r.json)" -eq 5 ] || fail 'a failure took what was measured'

# ---- lists on the device ----
listed="h=4,hkv=1,lists=kv,n=3,nkv=200,d=16,dv=8,dtype=bf16,topk=20,$small"
good bench --seconds 0 "$listed,vink=1,valid=0.5" --json out/b.json --csv out/b.csv
for name in hot rotate; do
    good bench --seconds 0 --$name "$listed,valid=0.5,entries=flu" "${listed/topk=20/topk=4},form=bits,block=1x8" \
        --json out/b.json --csv out/b.csv
    printf '%s\n' ${name} ${name} >wanted
    shows wanted field timing
    printf '%s\n' number number >wanted
    shows wanted field fill_ms
    shows wanted field step_ms
    printf '%s\n' 'topk(20,0.5)' 'bits(4,1)' >wanted
    shows wanted field pattern
done
good bench --seconds 0 "h=2,n=30,d=8,block=8x8,select=topk(2),$small" "h=2,n=30,d=8,pattern=window(3,3),form=mask,$small" \
    --json out/b.json --csv out/b.csv
printf '%s\n' 'topk(2)' 'mask(window(3,3))' >wanted
shows wanted field pattern
printf '%s\n' number null >wanted
shows wanted field select_ms
refused 'rotate goes with topk=' bench --rotate "n=8,d=4,$small"
refused 'take --stages' bench --stages "$listed"

# ---- published entries ----
published() {
    printf '%s\n' '# theirs' 'entry,case,kernel,field,published,need' "$@" >published.csv
}
good bench --seconds 0 --baseline naive_cpu "n=30,d=4,pattern=window(3,0),backend=cpu" \
    --json out/b.json
against=(bench --resume --json out/b.json --against published.csv)
published '"slow","n=30,pattern=window(3,0)",,ms,1e9,beat' \
    '"slower",n=30,naive_cpu,speedup,1e-9,beat' '"fast",n=30,,ms,1e-9,show' '"stage",n=30,,softmax_ms,1e9,beat'
good "${against[@]}"
says '3 of 3 entries beaten'
says 'not reached'
for entry in '"fast",n=30,,ms,1e-9,beat' '"far",n=30,naive_cpu,speedup,1e9,beat'; do
    published "$entry"
    ends 1 "${against[@]}"
    says 'NOT BEATEN'
done
for entry in '"none",n=31,,ms,1e9,beat' '"none",n=30,frob,ms,1e9,beat' \
    '"none",n=30,,frob_ms,1e9,beat' '"none","n=30,pattern=window(3)",,ms,1e9,beat' '"none",frob=30,,ms,1e9,beat'; do
    published "$entry"
    ends 1 "${against[@]}"
    says 'not measured'
done
for entry in 'too,few,cells' '"open,n=30,,ms,1,beat' 'a,n=30,,ms,x,beat' 'a,n=30,,ms,-1,beat' \
    'a,n=30,,ms,1,win' 'a,n=30,,ms,1,beat,more'; do
    published "$entry"
    ends 2 "${against[@]}"
    checks=$((checks + 1))
    grep -qF 'published.csv:3: no entry' err || fail "$entry"
done
printf 'entry,case\n' >published.csv
ends 2 "${against[@]}"
ends 2 bench --resume --json out/b.json --against /dev/null
ends 2 bench --resume --json out/b.json --against .
refused 'none.csv' bench --resume --json out/b.json --against none.csv
for name in "$repository"/bench/published/*.csv "$repository"/bench/goals/*.csv; do
    checks=$((checks + 1))
    "$tessera" bench --resume --json out/b.json --against "$name" >std 2>err
    [ $? -eq 1 ] && grep -q '^0 of [1-9][0-9]* entries beaten' std || fail "$name"
done
# The committed measurements beat every published entry that can be beaten. Those that cannot are shown:
# they and no others are not reached.
for name in "$repository"/bench/published/*.csv; do
    if [ ! -e "$repository/bench/results/$(basename "$name" .csv).json" ]; then
        echo "bench.sh: $(basename "$name") waits for its measurements"
        continue
    fi
    cp "$repository/bench/results/$(basename "$name" .csv).json" out/committed.json
    good bench --resume --json out/committed.json --against "$name"
    checks=$((checks + 1))
    grep -q ' not measured$' std && fail "$name has entries that are not measured"
    [[ $name != */modes.csv ]] || grep ' not reached$' std | sed 's/  .*//' >not_reached
done
for keys in 128 256 512 1024; do
    echo "1a naive CPU N=$keys D=512"
    echo "1c random N=$keys D=512 DDS"
done | sort >cannot
shows cannot sort not_reached

# ---- scripts of bench ----
# An ncu that answers as ncu does: the first launch of each kernel counts.
mkdir bin
cat >bin/ncu <<'END'
#!/bin/sh
stalled=smsp__average_warps_issue_stalled
echo '==PROF== connected'
printf '"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"'
printf ',"%s_per_issue_active.ratio"' ${stalled}_barrier ${stalled}_wait
printf '\n"","","ns","%%","inst","inst"\n'
echo '"0","void sddmm<float, 8>(params)","80,400","11.2","1","3"'
echo '"1","softmax","5000","17.5","0","0"'
echo '"2","softmax","6000","17.5","0","0"'
END
chmod +x bin/ncu
cat >wanted <<'END'
case,kernel,us,sm_pct,barrier_pct,wait_pct
"n=3,d=4","void sddmm<float, 8>(params)",80.4,11.2,25.0,75.0
"n=3,d=4","softmax",5.0,17.5,0.0,0.0
END
ncu_columns() {
    PATH=$work/bin:$PATH "$repository/bench/ncu.sh" "$tessera" out/ncu.csv n=3,d=4 >/dev/null &&
        sed 's/\("n=3\),/\1;/; s/float,/float;/' out/ncu.csv | cut -d , -f 1-4,13,15 |
        sed 's/n=3;/n=3,/; s/float;/float,/'
}
shows wanted ncu_columns
checks=$((checks + 1))
printf '#!/bin/sh\necho "==ERROR== none"\n' >bin/ncu
PATH=$work/bin:$PATH "$repository/bench/ncu.sh" "$tessera" out/none.csv n=3,d=4 >std 2>err
[ $? -eq 1 ] && grep -q ERROR err && [ ! -e out/none.csv ] || fail 'ncu.sh without a kernel'
# A stage and an output folder: the sweep that is asked for is made anew where it is of another
# commit, and nothing else is touched.
# In a copy without results of its own, which would be taken over.
mkdir -p stage results copy/bench/results
cp -r "$repository/bench/all.sh" "$repository/bench/sweeps" copy/bench
cat >stage/tessera <<'END'
#!/bin/sh
[ "$1" = info ] && echo 'cuda 0: a device' && exit
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || echo '[]' >"$2"
    shift
done
END
printf '#!/bin/sh\n' >bin/nvidia-smi
chmod +x stage/tessera bin/nvidia-smi
echo new >stage/commit
all_goes() {
    PATH=$work/bin:$PATH OUT=$work/results "$work/copy/bench/all.sh" "$work/stage" 450 stages \
        >std 2>err ||
        fail "all.sh: status $?"
}
printf '  "commit": "old"\n' | tee results/stages.json >results/modes.json
touch results/stages.csv results/mine.json
checks=$((checks + 2))
all_goes
[ -e results/mine.json ] && [ -e results/modes.json ] && [ ! -e results/stages.csv ] &&
    [ -s results/stages.json ] && grep -qx 'commit new' results/machine.txt ||
    fail 'all.sh: another commit'
printf '  "commit": "new",\n' >results/stages.json
touch results/stages.csv
all_goes
[ -e results/stages.csv ] || fail 'all.sh: the same commit'
# Without a GPU it is the CPU's numbers, at the levels that are there.
cat >stage/tessera <<'END'
#!/bin/sh
[ "$1" = info ] && printf '%s\n' 'cuda       none: why' 'kernel     cpu_attention_avx2 (cpu attention)' \
    'kernel     cpu_attention_avx512 (cpu attention): unusable' && exit
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || echo "$TESSERA_ISA" >"$2"
    shift
done
END
printf '#!/bin/sh\nexit 1\n' | tee bin/python3 >bin/nvidia-smi
chmod +x bin/python3
rm -r results
checks=$((checks + 1))
PATH=$work/bin:$PATH OUT=$work/results "$work/copy/bench/all.sh" "$work/stage" >std 2>err ||
    fail "all.sh without a device: status $?"
(cd results && printf '%s\n' *.json) >all
printf '%s\n' cpu_avx2.json readme_cpu.json threads.json >wanted
cmp -s all wanted && grep -qx avx2 results/cpu_avx2.json && grep -qx 'no GPU' results/machine.txt &&
    grep -q 'cpu_avx512: this machine has no avx512' std && grep -q 'peers_cpu: no PyTorch' std ||
    fail 'all.sh without a device'

# ---- wrong answers ----
# A bench with faults planted: in ours where d_v is 13, in the naive baseline where there are 13
# keys; d_v of 15 and 17 are work that is not done, whose right answer an earlier run left.
wrong() {
    checks=$((checks + 1))
    "$built/bench_fails" --seconds 0 --baseline naive_cpu "$2" --json out/w.json >std 2>err
    local status=$?
    if [ $status -ne 1 ] || [ "$(wc -l <err)" -ne 1 ] || ! grep -qF -- "$1" err; then
        fail "status $status: a wrong answer of $2"
    fi
    [ ! -e out/w.json ] || fail 'a wrong answer left a file'
}
wrong 'error' n=16,d=8,dv=13,backend=cpu,pipeline=fused
wrong 'error' n=16,d=8,dv=13,backend=cpu,pipeline=staged
wrong 'the oracle has' n=16,d=8,dv=15,backend=cpu
wrong 'the oracle has' n=16,d=8,dv=17,backend=cpu,pipeline=staged
wrong 'naive_cpu' n=16,nkv=13,d=8,backend=cpu,pipeline=fused
checks=$((checks + 1))
"$built/bench_fails" --seconds 0 --baseline naive_cpu n=16,d=8,backend=cpu >std 2>err ||
    fail 'bench without a fault'

# ---- bad input ----
for option in '--seconds x' '--seconds -1' '--seconds 4000' '--time-limit x' '--time-limit -1' \
    '--baseline frob' '--baseline naive_cpu,frob' '--baseline naive_cpu,' '--baseline ,'; do
    # shellcheck disable=SC2086
    refused "${option% *}" bench $option n=8,d=4
done
refused 'given twice' bench --against a --against b n=8,d=4
refused "option '--baseline' requires an argument" bench n=8,d=4 --baseline
refused "'' is none" bench n=8,d=4 --baseline=
refused "invalid option -- 'h'" bench -h n=8,d=4
refused 'no cases' bench
refused '--layer' bench --layer "n=8,d=4,$small"
refused '--layer' bench --layer "h=1,n=8,d=4,dtype=f16,$small"

echo "bench.sh: $checks checks, $failures failed"
[ "$failures" -eq 0 ]
