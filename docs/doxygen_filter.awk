# Turns the header's plain comments into Doxygen's. A comment on lines of its own documents every
# declaration that follows it up to a blank line; one after code documents that code. A member
# without either is one that the comment of its struct describes. Rulers between sections and the
# comments inside functions stay plain.

function flush_comment() {
    printf "%s", comment
    written = 1
}

# Doxygen gives the text behind a list of declarators to the last alone: one line each.
function member(line, text,    type, names, n, i) {
    match(line, /^ *(const )?[a-z_0-9]+ /)
    type = substr(line, 1, RLENGTH)
    sub(/;.*/, "", line)
    n = split(substr(line, RLENGTH + 1), names, /, /)
    for (i = 1; i <= n; i++)
        print type names[i] "; /**< " text " */"
}

/^\/\* ---/ { ruler = 1 }
ruler { print; if (/\*\//) ruler = 0; next }

/^ *\/\*/ && !in_body {
    comment = ""
    written = 0
    collecting = 1
    sub(/\/\*/, NR == 1 ? "/** @file" : "/**")
}
collecting {
    comment = comment $0 "\n"
    if (/\*\/$/) {
        collecting = 0
        if (in_struct)
            flush_comment()
    }
    next
}

/^$/ { if (comment != "" && !written) flush_comment(); comment = "" }
/^(TESS_API|typedef|static inline|TESS_DEFINE|#)/ && comment != "" { flush_comment() }
/^static inline.*\{$/ || /^ +.*\) \{$/ { in_body = 1 }
/^}/ { in_body = 0; in_struct = 0 }
/^typedef struct .*\{$/ { in_struct = 1; comment = ""; print; next }
in_struct && /;/ {
    text = "Described above."
    if (match($0, /\/\*.*\*\//))
        text = substr($0, RSTART + 3, RLENGTH - 6)
    else if (match($0, /\/\*.*/)) { # goes on
        sub(/ \/\* /, " /**< ")
        print
        continued = 1
        next
    } else if (written && comment != "")
        text = ""
    if (text != "")
        member($0, text)
    else
        print
    written = 0
    comment = ""
    next
}
!in_body && /[^ ].* \/\* / { sub(/ \/\* /, " /**< ") }
{ print }
