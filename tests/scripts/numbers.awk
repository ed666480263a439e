# The numbers of pages against the tables of results; numbers.sh says what is asked. Begins with
# bench/csv.awk. Arguments: pages, the names of Markdown files; the files are CSV.

# Who ran: a pipeline of ours, or a kernel that is compared with it.
function who(pipeline, kernel) {
    if (pipeline == "fused" || pipeline == "staged") return pipeline
    if (kernel ~ /\+/) return "staged"
    if (kernel ~ /_attention/) return "fused"
    return kernel
}
function rounded(value, as) {
    gsub(/,/, "", as)
    return sprintf("%." (as ~ /\./ ? length(as) - index(as, ".") : 0) "f", value) == as
}
# Whether every key=value of a case is one of another.
function within(some, all, n, i, depth, word, c) {
    all = "," all ","
    some = some ","
    for (i = 1; i <= length(some); i++) {
        c = substr(some, i, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0) {
            if (!index(all, "," word ",")) return 0
            word = ""
        } else word = word c
    }
    return 1
}
function complain(at, words) { print page ":" at ": " words; failures++ }
# The last commit that a text names, or the one that stood before it.
function commit_last(text, before) {
    while (match(text, /[Cc]ommit [0-9a-f]+/)) {
        if (RLENGTH >= 14) before = substr(text, RSTART + 7, RLENGTH - 7)
        text = substr(text, RSTART + RLENGTH)
    }
    return before
}
# Whether a row is of a commit. Published rows are others', and of none.
function commit_is(r, commit) {
    if (row_file[r] ~ /^published\//) return 1
    return commit != "" && field[r, "commit"] ~ ("^" commit "[0-9a-f]*$")
}
function commit_differs(r, commit, its) {
    its = field[r, "commit"]
    if (its ~ /^[0-9a-f]+$/) its = substr(its, 1, 7)
    return "the row is of " (its == "" ? "no commit" : "commit " its) ", the page names " \
        (commit == "" ? "none" : commit)
}

# ---- the tables ----

FNR == 1 {
    file = FILENAME
    sub(/.*results\//, "", file)
    sub(/.*published\//, "published/", file)
    sub(/\.csv$/, "", file)
    titled = 0
}
/^#/ || /^$/ { next }
!titled {
    delete names
    n_names = cut($0, names)
    titled = 1
    next
}
{
    delete cells
    cut($0, cells)
    rows++
    row_file[rows] = file
    for (i = 1; i <= n_names; i++) field[rows, names[i]] = cells[i]
    row_who[rows] = who(field[rows, "pipeline"], field[rows, "kernel"])
}

# ---- prose ----

# The row of the last item, or 0 and `why`. Case or entry: the only row that holds it.
function row_find(r, found, exact, n) {
    for (r = 1; r <= rows; r++) {
        if (row_file[r] != item_file) continue
        if (item_entry != "") {
            if (field[r, "entry"] != item_entry) continue
        } else if ((row_who[r] != item_who && field[r, "kernel"] != item_who) || \
            !within(item_case, field[r, "case"]))
            continue
        if (item_entry == "" && field[r, "case"] == item_case) {
            if (!exact) n = 0
            exact = 1
        } else if (exact) continue
        n++
        found = r
    }
    if (n == 1) return found
    why = (n ? n " rows are " : "no row is ") \
        (item_entry != "" ? "\"" item_entry "\"" : item_who " of " item_case) " in " item_file
    return 0
}
# A number of a row, in the unit of the text.
function column_value(column, unit, r, fits) {
    r = row_find()
    if (!r) return 0
    if (!commit_is(r, item_commit)) { why = commit_differs(r, item_commit); return 0 }
    if (column == "keep") {
        if (unit == "%" && match(field[r, "case"], /random[a-z_]*\([0-9.]+/)) {
            r = substr(field[r, "case"], RSTART, RLENGTH)
            sub(/.*\(/, "", r)
            return 100 * r
        }
        why = "keep is the fraction of a random pattern, in %"
        return 0
    }
    fits = unit == "" || (unit == "ms" && column ~ /ms$/) || \
        (unit == "TFLOP/s" && column ~ /tflops$/) || (unit == "%" && column ~ /(share|_pct)$/) || \
        (unit == "times" && column ~ /(speedup|_over_dense|_over_floor|published)$/)
    if (!fits) why = "column " column " is not in " unit
    else if (field[r, column] !~ /^[0-9.]+(e[-+]?[0-9]+)?$/) why = "no number in column " column
    else return field[r, column] * (column ~ /share$/ ? 100 : 1)
    return 0
}
# What an item says; sets `why` where it says nothing.
function item_value(item, unit, at, n, words, over, under, command) {
    if (sub(/^= */, "", item)) {
        if (item !~ /^[-0-9.()*\/^+ ]+$/) { why = "'" item "' is no sum"; return 0 }
        command = "awk 'BEGIN { printf \"%.12g\", " item " }'"
        at = ""
        command | getline at
        close(command)
        if (at == "") why = "'" item "' is no sum"
        return at + 0
    }
    if (sub(/^given */, "", item)) {
        if (unit != "%") why = "a measured number is not given"
        return item + 0
    }
    at = index(item, " / ")
    if (at) {
        if (unit != "times" && unit != "%") { why = "a quotient is not in " unit; return 0 }
        over = item_value(substr(item, 1, at - 1), "")
        under = item_value(substr(item, at + 3), "")
        if (why == "" && under == 0) why = "a quotient by 0"
        return why == "" ? over / under * (unit == "%" ? 100 : 1) : 0
    }
    if (match(item, /"[^"]*"/)) {
        item_entry = substr(item, RSTART + 1, RLENGTH - 2)
        item_file = substr(item, 1, RSTART - 1)
        item = substr(item, RSTART + RLENGTH)
        gsub(/ /, "", item_file)
        gsub(/ /, "", item)
        return column_value(item, unit)
    }
    n = split(item, words, " ")
    if (n < 1 || n > 4) { why = "'" item "' is not FILE CASE WHO COLUMN"; return 0 }
    if (n >= 2) { item_who = words[n - 1]; item_entry = "" }
    if (n >= 3) item_case = words[n - 2]
    if (n == 4) item_file = words[1]
    return column_value(words[n], unit)
}
# Numbers wait until the comment that says where they are from.
function number_waits(number, unit, at, commit) {
    waiting[++n_waiting] = number
    waiting_commit[n_waiting] = commit
    waiting_unit[n_waiting] = unit
    waiting_line[n_waiting] = at
}
function origin_take(comment, at, n, items, i, value) {
    gsub(/^<!-- *from: *| *-->$/, "", comment)
    n = split(comment, items, / *; */)
    for (i = 1; i <= n && i <= n_waiting; i++) {
        why = ""
        item_commit = waiting_commit[i]
        value = item_value(items[i], waiting_unit[i])
        told++
        if (why == "" && !rounded(value, waiting[i])) why = "the row says " value
        if (why != "") complain(waiting_line[i], waiting[i] " " waiting_unit[i] ": " why)
    }
    if (n > n_waiting) complain(at, "'" items[n_waiting + 1] "' is of no number")
    for (; i <= n_waiting; i++) number_lacks(i)
    n_waiting = 0
}
function number_lacks(i) {
    told++
    complain(waiting_line[i], waiting[i] " " waiting_unit[i] ": no row is named for it")
}
# All numbers and comments of a paragraph, whose lines begin at line_at[1 ... n_lines].
function prose(text, first, whole, commit, base, number, list, unit, n, words, w, comment, at, l, named) {
    whole = text
    base = 0
    number = "[0-9]+(,[0-9][0-9][0-9])*(\\.[0-9]+)?( \\([^()]*\\))?"
    list = number "((,? and | or | to |, |-|–|…)" number ")*" " ?(ms|times|TFLOP/s|%|×|x)"
    while (1) {
        comment = match(text, /<!-- *from:[^>]*-->/) ? RSTART : 0
        n = RLENGTH
        # A unit is a word by itself: 64x64 is none.
        at = 0
        while (match(substr(text, at + 1), list)) {
            at += RSTART
            words[0] = RLENGTH
            if (substr(text, at + words[0], 1) !~ /[0-9A-Za-z]/) break
            at += words[0] - 1
        }
        if (!RLENGTH || RLENGTH < 0) at = 0
        if (!at && !comment) break
        if (comment && (!at || comment < at)) {
            for (l = n_lines; l > 1 && line_at[l] > base + comment; l--) ;
            origin_take(substr(text, comment, n), first + l - 1)
            base += comment + n - 1
            text = substr(text, comment + n)
            continue
        }
        unit = substr(text, at, words[0])
        named = at > 2 && substr(text, at - 2, 2) == "= " # D = 64, 5 %
        n = words[0]
        for (l = n_lines; l > 1 && line_at[l] > base + at; l--) ;
        base += at + n - 1
        text = substr(text, at + n)
        commit = commit_last(substr(whole, 1, base), section_commit)
        w = unit
        match(unit, /(ms|times|TFLOP\/s|%|×|x)$/)
        w = substr(unit, 1, RSTART - 1)
        unit = substr(unit, RSTART)
        if (unit == "x" || unit == "×") unit = "times"
        gsub(/ \([^()]*\)/, "", w)
        sub(/ $/, "", w)
        n = split(w, words, /,? and | or | to |, |-|–|…/)
        for (w = 1 + (named && n > 1); w <= n; w++) number_waits(words[w], unit, first + l - 1, commit)
    }
    for (w = 1; w <= n_waiting; w++) number_lacks(w)
    n_waiting = 0
    section_commit = commit_last(whole, section_commit)
    commits_named = commits_named " " commit_all(whole)
    pictures_check(whole, first)
}
# All commits that a text names, with blanks around.
function commit_all(text, all) {
    while (match(text, /[Cc]ommit [0-9a-f]+/)) {
        if (RLENGTH >= 14) all = all " " substr(text, RSTART + 7, RLENGTH - 7)
        text = substr(text, RSTART + RLENGTH)
    }
    return all
}
# Rows that a picture of results shows are of commits that its section names before it.
function pictures_check(text, at, name, r, n, commits, i, is) {
    while (match(text, /\(\.\.\/bench\/results\/[a-z0-9_]+\.png\)/)) {
        name = substr(text, RSTART + 18, RLENGTH - 23)
        text = substr(text, RSTART + RLENGTH)
        n = split(commits_named, commits, " ")
        is = 0
        for (r = 1; r <= rows; r++) {
            if (row_file[r] != name) continue
            for (i = 1; i <= n && !commit_is(r, commits[i]); i++) ;
            if (i > n) break
            is = 1
        }
        if (r <= rows) complain(at, name ".png: " commit_differs(r, n ? commits[n] : ""))
        else if (!is) complain(at, name ".png: no rows in results")
    }
}
function paragraph_end() {
    if (paragraph != "") prose(paragraph, paragraph_line)
    paragraph = ""
    n_lines = 0
}
function paragraph_add(text) {
    if (paragraph == "") paragraph_line = line
    line_at[++n_lines] = length(paragraph) + 1
    paragraph = paragraph text " "
}

# ---- tables ----

function table_row(text, n, table, i, asked, shown, share, wanted, found, other, r) {
    n = split(text, table, / *\| */)
    if (table[2] !~ /^`/) { # a head, the line under it, or no case
        if (text !~ /---/ && text !~ /[0-9] ?(ms|times|TFLOP\/s|%|×)/)
            for (i = 2; i < n; i++) heads[i] = table[i]
        paragraph_add(text)
        paragraph_end()
        return
    }
    asked = table[2]
    gsub(/`/, "", asked)
    if (caption_case != "") asked = asked "," caption_case
    for (i = 3; i < n; i++) {
        if (table[i] !~ /^[0-9.,]+ (ms|%)$/) {
            paragraph_add(table[i])
            paragraph_end()
            continue
        }
        shown = table[i]
        share = shown ~ / %$/
        sub(/ (ms|%)$/, "", shown)
        wanted = heads[i] in peers ? peers[heads[i]] : \
            heads[i] in levels ? levels[heads[i]] : heads[i]
        found = other = 0
        for (r = 1; r <= rows && !found; r++) {
            if (!((caption_file == "" || row_file[r] == caption_file) && field[r, "ms"] != "" && \
                (share ? field[r, "kernel"] : row_who[r]) == wanted && \
                rounded(share ? 100 * field[r, "peak_share"] : field[r, "ms"], shown) && \
                within(asked, field[r, "case"])))
                continue
            found = commit_is(r, section_commit)
            if (!found) other = r
        }
        told++
        if (!found) complain(line, table[i] " of " wanted " for " asked \
            (other ? ": " commit_differs(other, section_commit) : ""))
        for (r = 1; r <= n_shown; r++)
            if (shown_who[r] == wanted && within(asked, shown_case[r]) && within(shown_case[r], asked))
                complain(line, wanted " of " asked " stands twice")
        shown_who[++n_shown] = wanted
        shown_case[n_shown] = asked
    }
}
function page_read(text, fenced, in_table, before) {
    line = fenced = in_table = 0
    caption_file = caption_case = section_commit = commits_named = ""
    n_shown = 0
    before = told
    while ((getline text < page) > 0) {
        line++
        if (text ~ /^ *```/) fenced = !fenced
        if (fenced || text ~ /^ *```/ || text ~ /^ *$/ || text ~ /^ *([-*#>]|[0-9]+\.) /) paragraph_end()
        if (fenced || text ~ /^ *```/) continue
        if (text ~ /^#/) section_commit = commits_named = ""
        if (text !~ /^\|/ && in_table) caption_file = caption_case = ""
        in_table = text ~ /^\|/
        if (text ~ /^<!-- *table:/) {
            gsub(/^<!-- *table: *| *-->$/, "", text)
            caption_file = text
            sub(/ .*/, "", caption_file)
            caption_case = text ~ / / ? text : ""
            sub(/^[^ ]* */, "", caption_case)
        } else if (in_table) {
            paragraph_end()
            table_row(text)
        } else if (text !~ /^ *$/) paragraph_add(text)
    }
    paragraph_end()
    close(page)
    if (told == before) complain(line, "no numbers")
}

END {
    peers["FlexAttention"] = "flex"; peers["cuDNN, dense"] = "cudnn_dense"
    peers["Triton"] = "triton"; peers["VSA"] = "vsa"; peers["FlashAttention 4"] = "flash4"
    peers["tiled, dense"] = "dense_tiled"; peers["cuBLAS, dense"] = "dense_cublas"
    peers["PyTorch"] = "flash2_dense"
    levels["AVX-512"] = "cpu_attention_avx512"; levels["AVX2"] = "cpu_attention_avx2"
    levels["AVX-512 BF16"] = "cpu_attention_avx512bf16"
    n_pages = split(pages, page_names, " ")
    for (p = 1; p <= n_pages; p++) {
        page = page_names[p]
        page_read()
    }
    print told + 0 " numbers, " failures + 0 " not in the results"
    exit failures > 0 || n_pages == 0
}
