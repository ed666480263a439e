# Run by every build: writes OUT, a header with the commit that the sources are of, when that has
# changed. "unknown" outside a checkout.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git rev-parse --show-prefix WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE inside OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE outside ERROR_QUIET)
execute_process(COMMAND git describe --always --dirty --abbrev=40 --exclude *
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(outside OR inside OR NOT commit) # no checkout, or a folder of another
    set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define BENCH_COMMIT \"@commit@\"\n" @ONLY)
