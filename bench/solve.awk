# Least squares of relative errors: add() takes an equation of a key, solve() answers its COSTS unknowns in cost[]
# (cost[i] of x[i], whose sum is ns - first). Times are in nanoseconds.

function add(key, n, x, ns, first, i, j) {
    for (i = 1; i <= COSTS; i++) {
        for (j = 1; j <= COSTS; j++) squares[key, i, j] += x[i] * x[j] / (ns * ns)
        right[key, i] += x[i] * (ns - first) / (ns * ns)
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
