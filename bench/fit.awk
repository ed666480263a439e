# Costs of kernels and tile heights by least squares: rows of bench/results/costs.csv, times of lists that fill the device
# in whole waves, become costs.def; how far each fit is off goes to stderr. With times in nanoseconds,
#
#   time = launch + items / multiprocessors * (item + steps * step)
#
# is linear in the seven costs. Squares are of relative errors. Steps are of 64 keys; keys are gathered where blocks
# are shorter than 8 keys, which is what copies by TMA take at least; steps of other runs lie between those of 64 and of
# 8, as src/plan/cost.c has them.

# Nanoseconds of a launch: lists that fill a device do not tell it. Of drawn shapes that take less than 30 us
# (docs/notes/planning.md, "Launches").
function launch(kernel) {
    if (kernel ~ /sm90_d(512|576|768|1024)/) return 9000
    return kernel ~ /sm90/ ? 3000 : 5000
}

# Lists of a kernel and height (bench/fit.sh).
function wanted(kernel, rows) { return kernel ~ /sm90/ && rows >= 32 ? 12 : 8 }

# Shares of lists: past 64 dims tensors are larger than L2, and Hopper's tiles of 4 steps wait for them; past 256 dims
# steps take longer than their bytes.
function share(kernel, keys) { return kernel ~ /sm90_d(128|192|256)/ && keys < 512 ? .05 : 1 }

# Takes an equation of a key.
function add(key, n, x, ns, first, w, i, j) {
    for (i = 1; i <= COSTS; i++) {
        for (j = 1; j <= COSTS; j++) squares[key, i, j] += w * x[i] * x[j] / (ns * ns)
        right[key, i] += w * x[i] * (ns - first) / (ns * ns)
        kept[key, n, i] = x[i]
    }
    time[key, n] = ns
}

# Solves the normal equations by elimination; a cost that no list of the key has is 0, and none is negative.
function solve(key, i, j, k, most, pivot, t) {
    for (i = 1; i <= COSTS; i++) {
        for (j = 1; j <= COSTS; j++) a[i, j] = squares[key, i, j]
        a[i, COSTS + 1] = right[key, i]
        if (a[i, i] == 0) a[i, i] = 1
    }
    for (k = 1; k <= COSTS; k++) {
        pivot = k
        for (i = k + 1; i <= COSTS; i++) if (a[i, k] ^ 2 > a[pivot, k] ^ 2) pivot = i
        for (j = k; j <= COSTS + 1; j++) { t = a[k, j]; a[k, j] = a[pivot, j]; a[pivot, j] = t }
        if (a[k, k] == 0) return 0
        for (i = 1; i <= COSTS; i++) if (i != k) {
            most = a[i, k] / a[k, k]
            for (j = k; j <= COSTS + 1; j++) a[i, j] -= most * a[k, j]
        }
    }
    for (i = 1; i <= COSTS; i++) {
        t = a[i, COSTS + 1] / a[i, i]
        cost[i] = t > 0 ? t : 0
    }
    return 1
}

# How far the costs of a key are off, in per cent, at most.
function worst(key, first, n, i, sum, off, most) {
    for (n = 1; n <= lists[key]; n++) {
        sum = first
        for (i = 1; i <= COSTS; i++) sum += cost[i] * kept[key, n, i]
        off = 100 * (sum / time[key, n] - 1)
        if (off ^ 2 > most ^ 2) most = off
    }
    return most
}

BEGIN {
    FS = ","
    COSTS = 7 # an item; steps plain, masked, of runs, of masked runs, gathered, gathered masked
}

NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }

{
    key = $column["kernel"] " " $column["tile"]
    if (!(key in lists)) order[++keys] = key
    from = $column["device"] ", commit " $column["commit"]
    if (!(from in known)) cards = cards (cards ? "; " : "") from
    known[from]
    split($column["block"], block, "x")
    run = block[2] + 0
    per = $column["items"] / $column["multiprocessors"]
    plain = per * $column["full"] / 64
    masked = per * $column["masked"] / 64
    for (i = 2; i <= COSTS; i++) x[i] = 0
    x[1] = per
    if (run < 8) {
        x[6] = plain
        x[7] = masked
    } else {
        part = log(64 / run) / log(8) # of what runs of 8 take more
        x[2] = plain * (1 - part)
        x[4] = plain * part
        part = (64 / run - 1) / 7
        x[3] = masked * (1 - part)
        x[5] = masked * part
    }
    add(key, ++lists[key], x, 1e6 * $column["ms"], launch($column["kernel"]),
        share($column["kernel"], $column["full"] + $column["masked"]))
}

END {
    print "/* Costs of fused kernels, written by bench/fit.sh: " cards ". Not to be edited."
    print " * Nanoseconds: of a launch; of one multiprocessor, kept busy, an item, and steps of 64 keys: plain,"
    print " * masked; both in runs of 8 keys; both gathered."
    print " *"
    print " *   CUDA_COSTS(kernel, {rows, launch, item, plain, masked, runs, masked_runs, gathered, gathered_masked} ...)"
    print " */"
    for (k = 1; k <= keys; k++) {
        key = order[k]
        split(key, name, " ")
        first = launch(name[1])
        if (lists[key] < wanted(name[1], name[2]) || !solve(key)) {
            print "fit: " key ": too few lists, left out" >"/dev/stderr"
            continue
        }
        sub(/^cuda_attention_/, "", name[1])
        if (name[1] != open) printf "%sCUDA_COSTS(%s", open ? ")\n" : "", name[1]
        open = name[1]
        printf ",\n           {%d, %.4g", name[2], first
        for (i = 1; i <= COSTS; i++) printf ", %.4g", cost[i]
        printf "}"
        printf "fit: %s: %+.1f %% at most\n", key, worst(key, first) >"/dev/stderr"
    }
    if (open) print ")"
}
