/* Functions of a stranger's program whose names the library uses within itself: it calls its own. */
#include <stdlib.h>

void error_set(void);
void backend_get(void);
void plan_make(void);

void error_set(void) {
    abort();
}

void backend_get(void) {
    abort();
}

void plan_make(void) {
    abort();
}
