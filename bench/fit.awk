# Costs of a kernel and a tile height by least squares: lines of
#   kernel, rows, keys of a block, items, full and masked keys of an item, milliseconds
# become rows of costs.def; how far each fit is off goes to stderr. With times in nanoseconds,
#
#   time = launch + items / multiprocessors * (item + steps * step)
#
# is linear in the six costs. Squares are of relative errors. Steps are of 64 keys; those of full keys are
# gathered where blocks are shorter than 8 keys, which is what copies by TMA take at least; steps of other runs lie
# between those of 64 and of 8, as src/plan/cost.c has them.

# Nanoseconds of a launch: lists that fill a device do not tell it. Of drawn shapes that take less than 30 us
# (docs/notes/planning.md, "Launches").
function launch(kernel) {
    if (kernel ~ /sm90_d(512|576|768|1024)/) return 9000
    return kernel ~ /sm90/ ? 3000 : 6000
}

# Lists of a kernel and height (bench/fit.sh).
function wanted(kernel, rows) { return kernel ~ /sm90/ && rows >= 32 ? 12 : 8 }

BEGIN { COSTS = 6 } # an item; steps plain, masked, of runs, of masked runs, gathered

{
    key = $1 " " $2
    if (!(key in lists)) order[++keys] = key
    per = $4 / multiprocessors
    for (i = 2; i <= COSTS; i++) x[i] = 0
    x[1] = per
    part = log(64 / $3) / log(8) # of what runs of 8 take more
    if ($3 < 8) x[6] = per * $5 / 64
    else {
        x[2] = per * $5 / 64 * (1 - part)
        x[4] = per * $5 / 64 * part
    }
    part = (64 / $3 - 1) / 7
    x[3] = per * $6 / 64 * (1 - part)
    x[5] = per * $6 / 64 * part
    add(key, ++lists[key], x, 1e6 * $7, launch($1))
}

END {
    for (k = 1; k <= keys; k++) {
        key = order[k]
        split(key, name, " ")
        first = launch(name[1])
        if (lists[key] < wanted(name[1], name[2]) || !solve(key)) {
            print "fit: " key ": too few lists, left out" >"/dev/stderr"
            continue
        }
        worst = 0
        for (n = 1; n <= lists[key]; n++) {
            sum = first
            for (i = 1; i <= COSTS; i++) sum += cost[i] * kept[key, n, i]
            off = sum / time[key, n] - 1
            if (off ^ 2 > worst ^ 2) worst = off
        }
        sub(/^cuda_attention_/, "", name[1])
        if (name[1] != open) printf "%sCUDA_COSTS(%s", open ? ")\n" : "", name[1]
        open = name[1]
        printf ",\n           {%d, %.4g", name[2], first
        for (i = 1; i <= COSTS; i++) printf ", %.4g", cost[i]
        printf "}"
        printf "fit: %s: %+.1f %% at most\n", key, 100 * worst >"/dev/stderr"
    }
    if (open) print ")"
}
