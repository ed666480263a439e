/* `tessera verify` whose cases, too small to pay for a team of threads, get one (tests/scripts/team.c). */
#include "cli/commands.h"

int main(int argc, char **argv) {
    return verify_main(argc, argv);
}
