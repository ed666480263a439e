/* One-line messages. */
#include "io/report.h"

#include <stdarg.h>
#include <stdio.h>

bool reason_set(struct reason *reason, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->text, sizeof reason->text, format, arguments);
    va_end(arguments);
    return false;
}

bool reason_set_error(struct reason *reason, const tess_error *error) {
    const char *message = error->message[0] ? error->message : tess_status_text(error->status);
    char place[96] = "";
    size_t used = 0;
    const struct {
        const char *name;
        int64_t value;
    } parts[] = {
        {"batch", error->batch},
        {"head", error->head},
        {"row", error->row},
        {"position", error->fault ? error->position : -1}}; /* messages on SPEC tell theirs */
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].value >= 0 && used < sizeof place)
            used += (size_t)snprintf(place + used, sizeof place - used, "%s%s %lld",
                                     used ? ", " : "", parts[i].name, (long long)parts[i].value);
    if (used > 0)
        return reason_set(reason, "%s (%s)", message, place);
    return reason_set(reason, "%s", message);
}

bool reason_set_count(struct reason *reason, const char *what, int64_t n, int64_t kv, int64_t q) {
    const long long has = n, of_k = kv, of_q = q;
    if (q == 1)
        return reason_set(reason, "%lld %s: 1 is needed", has, what);
    if (kv == 1 || kv == q)
        return reason_set(reason, "%lld %s: 1 or %lld are needed", has, what, of_q);
    return reason_set(reason, "%lld %s: 1, %lld (of K) or %lld (of Q) are needed", has, what, of_k,
                      of_q);
}

int report(const char *command, const char *format, ...) {
    char text[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++) /* file names may hold anything */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    if (command)
        fprintf(stderr, "tessera: %s: %s\n", command, text);
    else
        fprintf(stderr, "tessera: %s\n", text);
    return EXIT_BAD;
}
