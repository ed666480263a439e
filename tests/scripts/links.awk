# What pages and sources refer to; links.sh says what is asked. The first file lists all paths, a line each.

function complain(words) { print file ": " words; failures++ }
# Path of a target from the folder of a file.
function resolved(base, target, n, parts, i, path, depth) {
    if (!sub(/\/[^\/]*$/, "", base)) base = "."
    n = split(base "/" target, parts, "/")
    depth = 0
    for (i = 1; i <= n; i++) {
        if (parts[i] == "" || parts[i] == ".") continue
        if (parts[i] == ".." && depth) depth--
        else stack[++depth] = parts[i]
    }
    path = stack[1]
    for (i = 2; i <= depth; i++) path = path "/" stack[i]
    return depth ? path : "."
}
# The anchor that GitHub gives a heading.
function anchor_of(heading) {
    heading = tolower(heading)
    gsub(/[^a-z0-9 _-]/, "", heading)
    gsub(/ /, "-", heading)
    return heading
}
# Whether a page has a heading, or words in bold that begin a paragraph, of these words or beginning with them.
function heading_check(page, heading, n, all, i) {
    checks++
    n = split(headings[page], all, "\n")
    for (i = 1; i <= n; i++)
        if (index(all[i] " ", heading) == 1 && substr(all[i] " ", length(heading) + 1) ~ /^[ :,.(]/) return
    complain(page " has no heading \"" heading "\"")
}
# A link of a page: target is PATH, PATH#ANCHOR or #ANCHOR.
function link_check(target, path, anchor) {
    if (target ~ /^(https?|mailto):/) return ""
    checks++
    anchor = target
    if (!sub(/^[^#]*#/, "", anchor)) anchor = ""
    path = target
    sub(/#.*/, "", path)
    path = path == "" ? file : resolved(file, path)
    if (!(path in exists)) complain("no file " path)
    else if (anchor != "" && !((path, anchor) in anchors)) complain(path " has no heading for #" anchor)
    return path
}
function file_check(text, target, page, heading) {
    # A page by name, and a heading after it, as comments have them: docs/PAGE.md, "HEADING".
    page = text
    while (match(page, /docs\/[a-z0-9_\/]+\.md(, "[^"]+")?/)) {
        target = substr(page, RSTART, RLENGTH)
        page = substr(page, RSTART + RLENGTH)
        heading = target
        sub(/,.*/, "", target)
        checks++
        if (!(target in exists)) complain("no file " target)
        else if (sub(/^[^"]*"/, "", heading)) heading_check(target, substr(heading, 1, length(heading) - 1))
    }
    if (file !~ /\.md$/) return
    while (match(text, /\]\([^()]*\)(\), | \(|, )?("[^"]+")?/)) {
        target = substr(text, RSTART + 2, RLENGTH - 2)
        text = substr(text, RSTART + RLENGTH)
        heading = target
        sub(/\).*/, "", target)
        page = link_check(target)
        if (page ~ /\.md$/ && heading ~ /^[^)]*\), "/ && page in exists) {
            sub(/^[^"]*"/, "", heading)
            heading_check(page, substr(heading, 1, length(heading) - 1))
        }
    }
}

FNR == 1 { file = FILENAME; sub(/^\.\//, "", file); names[++files] = file; fenced = 0 }
files == 1 { sub(/^\.\//, ""); exists[$0]; next }
file ~ /\.md$/ && /^ *```/ { fenced = !fenced; next }
fenced { next }
file ~ /\.md$/ && /^#+ / {
    heading = $0
    sub(/^#+ /, "", heading)
    gsub(/`/, "", heading)
    headings[file] = headings[file] heading "\n"
    anchors[file, anchor_of(heading)]
}
file ~ /\.md$/ && match($0, /^[-*|0-9. ]*\*\*[^*]+\*\*/) {
    heading = $0
    sub(/^[^*]*(\* )?\*\*/, "", heading)
    sub(/\*\*.*/, "", heading)
    headings[file] = headings[file] heading "\n"
}
{
    if (file !~ /\.md$/) sub(/^ *(\*|#|\/\/)+ ?/, "")
    sub(/^ +/, "")
    text[files] = text[files] $0 " "
}

END {
    for (f = 2; f <= files; f++) {
        file = names[f]
        file_check(text[f])
    }
    print checks + 0 " references of " files - 1 " files, " failures + 0 " to nothing"
    exit failures > 0 || checks == 0
}
