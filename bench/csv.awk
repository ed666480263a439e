# Cuts a line of CSV into cells, quotes off; answers how many. For programs that begin with this file.
function cut(line, to, n) {
    n = 0
    while (line != "") {
        match(line, /^("[^"]*"|[^,]*)(,|$)/)
        cell = substr(line, 1, RLENGTH)
        line = substr(line, RLENGTH + 1)
        sub(/,$/, "", cell)
        gsub(/"/, "", cell)
        to[++n] = cell
    }
    return n
}
