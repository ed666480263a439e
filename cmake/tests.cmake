# The tests. C tests link the library's objects, so that they may use what it does not export.
find_package(Threads REQUIRED)
find_library(TESSERA_CMOCKA cmocka)
if(NOT TESSERA_CMOCKA)
    message(FATAL_ERROR "The tests need CMocka:\n  apt-get install -y libcmocka-dev\n"
        "Without it, configure with -DTESSERA_BUILD_TESTS=OFF.")
endif()

# tessera_test(FOLDER NAME [TEAMS] [SOURCES ...] [LINK ...] [INCLUDES ...]): tests/FOLDER/test_NAME.c
# and its helpers. TEAMS: small work is shared among threads as well, so that races would be met. Tests
# of planning and of kernels are kept for the levels below.
set(level_tests)
set(every_team ${PROJECT_SOURCE_DIR}/tests/scripts/team.c)
function(tessera_test folder name)
    cmake_parse_arguments(TEST "TEAMS" "" "SOURCES;LINK;INCLUDES" ${ARGN})
    if(TEST_TEAMS)
        list(APPEND TEST_SOURCES ${every_team})
        list(APPEND TEST_LINK -Wl,--wrap=threads_pay)
    endif()
    add_executable(test_${name} tests/${folder}/test_${name}.c ${TEST_SOURCES})
    target_include_directories(test_${name} PRIVATE tests ${TEST_INCLUDES})
    target_link_libraries(test_${name} PRIVATE tessera_warnings ${TEST_LINK} lab tessera_inside
        OpenMP::OpenMP_C Threads::Threads ${TESSERA_CMOCKA} m)
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300)
    if(folder MATCHES "^(planning|kernels)$")
        set(level_tests ${level_tests} ${name} PARENT_SCOPE)
    endif()
endfunction()

# One per file of the core and per stem. They see the contracts in src/.
foreach(name status api validate parts spec_errors spec_names messages)
    tessera_test(unit ${name} INCLUDES src)
endforeach()
foreach(name arrays lists pattern spec random)
    tessera_test(unit ${name} TEAMS INCLUDES src)
endforeach()
tessera_test(planning schedule TEAMS INCLUDES src)
tessera_test(planning strips INCLUDES src)
foreach(name fill fill_bits fill_refusals fill_report fill_run)
    tessera_test(unit ${name} TEAMS SOURCES tests/support/caches.c tests/support/device_lists.c
        tests/support/device_run.c tests/support/support.c INCLUDES src src/cuda)
endforeach()
foreach(name sddmm spmm)
    tessera_test(kernels ${name} TEAMS SOURCES tests/support/stage.c INCLUDES src)
endforeach()
tessera_test(kernels softmax TEAMS INCLUDES src src/cpu)
tessera_test(kernels gradients_cpu TEAMS SOURCES tests/support/gradient_passes.c INCLUDES src src/cpu)
foreach(name softmax_backward spmm_transposed)
    tessera_test(kernels ${name} TEAMS SOURCES tests/support/stages.c INCLUDES src src/cpu)
endforeach()
foreach(name caches views)
    tessera_test(unit ${name} TEAMS SOURCES tests/support/caches.c tests/support/device_lists.c
        tests/support/device_run.c tests/support/support.c INCLUDES src src/cpu)
endforeach()
tessera_test(kernels attention TEAMS SOURCES tests/support/support.c INCLUDES src src/cpu)
tessera_test(kernels o_rest TEAMS SOURCES tests/support/support.c)
tessera_test(kernels column_sums TEAMS SOURCES tests/support/support.c)
tessera_test(kernels mlp TEAMS SOURCES tests/support/support.c)
tessera_test(kernels base TEAMS SOURCES tests/support/basing.c tests/support/support.c)
tessera_test(kernels merge TEAMS SOURCES tests/support/merging.c tests/support/support.c)
tessera_test(unit select_call TEAMS SOURCES tests/support/selecting.c tests/support/support.c)
tessera_test(kernels pool TEAMS SOURCES tests/support/pooling.c)

# tessera_cuda_planning(NAME): the test plans for CUDA, also where nothing of CUDA was built: then its
# table stands in with the test.
function(tessera_cuda_planning name)
    if(NOT TESSERA_WITH_CUDA)
        target_sources(test_${name} PRIVATE $<TARGET_OBJECTS:tessera_cuda_plan>
            tests/support/cuda_planning.c)
        target_include_directories(test_${name} PRIVATE src src/cuda)
        target_link_options(test_${name} PRIVATE -Wl,--wrap=backend_get)
    endif()
endfunction()
tessera_test(planning granules TEAMS INCLUDES src src/cuda)
tessera_test(planning plan INCLUDES src src/cuda)
tessera_test(unit one_call INCLUDES src LINK -Wl,--wrap=backend_get)
tessera_test(planning backward_plan INCLUDES src LINK -Wl,--wrap=backend_get)
tessera_test(unit reserve SOURCES tests/support/device_lists.c tests/support/support.c INCLUDES src
    LINK -Wl,--wrap=backend_get)
tessera_test(unit backward_runs INCLUDES src LINK -Wl,--wrap=backend_get)
foreach(name operation image_parts)
    tessera_test(unit ${name} INCLUDES src LINK -Wl,--wrap=operation_get)
endforeach()
foreach(name select select_refusals)
    tessera_test(planning ${name} INCLUDES src src/cuda)
endforeach()
tessera_test(planning select_decode SOURCES tests/support/decode_problem.c tests/support/device_lists.c
    tests/support/support.c INCLUDES src src/cuda)
tessera_test(planning bytes INCLUDES src src/cuda)
tessera_test(planning regret SOURCES tests/support/timings.c INCLUDES src src/cuda)
add_test(NAME regret_all CONFIGURATIONS Long COMMAND test_regret all)
tessera_test(planning decode_params INCLUDES src src/cuda)
tessera_test(planning staged_variants INCLUDES src src/cuda)
tessera_test(planning cuda_print INCLUDES src src/cuda)
tessera_test(planning cuda_backward INCLUDES src src/cuda)
tessera_test(planning spill INCLUDES src src/cuda)
tessera_test(planning cuda_backward_staged INCLUDES src src/cuda)
tessera_test(unit fill_kernels SOURCES tests/support/emulated.c tests/support/filled.c
    tests/support/device_lists.c tests/support/support.c INCLUDES src src/cuda)
tessera_test(unit fill_granules SOURCES tests/support/device_lists.c tests/support/support.c
    INCLUDES src src/cpu src/cuda)
foreach(name caches views bytes decode_params granules plan regret select select_decode select_refusals
        staged_variants cuda_print cuda_backward spill cuda_backward_staged fill_kernels fill_granules)
    tessera_cuda_planning(${name})
endforeach()
if(TESSERA_WITH_CUDA)
    tessera_test(planning cuda_table INCLUDES src src/cuda)
    target_include_directories(test_cuda_table SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()

# What holds for the whole library, through its public header.
set(wrap_allocation -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=free)
tessera_test(unit lab)
tessera_test(unit listed LINK -Wl,--wrap=tess_plan_report)
tessera_test(unit oracle)
tessera_test(unit gradients TEAMS SOURCES tests/support/support.c)
tessera_test(unit modifiers TEAMS SOURCES tests/support/modified.c tests/support/support.c)
tessera_test(unit output SOURCES tools/cli/attention_output.c LINK tool_files -Wl,--wrap=rename)
if(TESSERA_OPENMP)
    tessera_test(unit threads)
endif()
tessera_test(files files LINK tool_files)
tessera_test(files lists_file LINK tool_files)
tessera_test(unit floor LINK bench)
tessera_test(promises properties TEAMS SOURCES tests/support/support.c)
tessera_test(promises memory TEAMS SOURCES tests/support/support.c tests/support/alloc.c
    LINK ${wrap_allocation})
tessera_cuda_planning(memory)
tessera_test(promises run_promises TEAMS SOURCES tests/support/support.c tests/support/alloc.c
    LINK ${wrap_allocation})
tessera_test(promises fill_promises TEAMS SOURCES tests/support/device_lists.c tests/support/support.c
    tests/support/alloc.c LINK ${wrap_allocation})

# Tests of planning and of kernels at each CPU level of this build, optimised: with checks and counters
# verify_teams draws kernels of every level. Sweeps of minutes are of `ctest -C Long`.
set(level_sweeps caches gradients gradients_cpu modifiers properties views)
list(REMOVE_ITEM level_tests ${level_sweeps} merge pool) # compiled once, for any processor
list(REMOVE_ITEM level_tests cuda_backward cuda_backward_staged cuda_print decode_params granules regret
    select_decode staged_variants) # plans for a GPU alone
set(levels_tested)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
    set(levels_tested ${cpu_built})
endif()
foreach(level ${levels_tested})
    add_test(NAME level_${level} COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/level.sh ${level}
        ${PROJECT_BINARY_DIR} ${level_tests} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    add_test(NAME level_${level}_sweeps CONFIGURATIONS Long COMMAND
        ${PROJECT_SOURCE_DIR}/tests/scripts/level.sh ${level} ${PROJECT_BINARY_DIR} ${level_sweeps}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(level_${level} level_${level}_sweeps PROPERTIES SKIP_RETURN_CODE 77
        TIMEOUT 600)
endforeach()

# Need a device, and say so where there is none.
tessera_test(kernels cuda SOURCES tests/support/merging.c tests/support/modified.c
    tests/support/support.c)
tessera_test(kernels cuda_base SOURCES tests/support/basing.c tests/support/merging.c tests/support/support.c)
tessera_test(kernels cuda_bits SOURCES tests/support/support.c)
tessera_test(kernels cuda_fill SOURCES tests/support/filled.c tests/support/device_lists.c
    tests/support/support.c INCLUDES src)
tessera_test(kernels cuda_pool SOURCES tests/support/pooling.c tests/support/support.c)
tessera_test(kernels decode SOURCES tests/support/caches.c tests/support/decode_problem.c
    tests/support/device_lists.c tests/support/support.c
    INCLUDES src src/cpu)
tessera_test(kernels cuda_select SOURCES tests/support/selecting.c tests/support/support.c)
foreach(name cuda_threads cuda_order)
    tessera_test(kernels ${name} SOURCES tests/support/lanes.c tests/support/support.c)
endforeach()
set_tests_properties(cuda cuda_base cuda_bits cuda_fill cuda_order cuda_pool cuda_select cuda_threads decode PROPERTIES
    SKIP_RETURN_CODE 77)

# They read tests/cases.
set_tests_properties(attention base caches column_sums gradients mlp modifiers regret regret_all cuda cuda_base cuda_bits PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})

# Measured by hand: tests/scripts/busy.sh; docs/notes/planning.md.
foreach(name latency fill_latency)
    add_executable(${name} tests/promises/${name}.c)
    target_link_libraries(${name} PRIVATE tessera_warnings tessera)
endforeach()

# Compare libraries by hand: tests/scripts/outputs.sh, first_call.sh. Linked to the shared library alone, so that
# another can stand in its place.
foreach(name outputs first_call)
    add_executable(${name} tests/promises/${name}.c)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
    add_dependencies(${name} lab)
    target_link_libraries(${name} PRIVATE tessera_warnings $<TARGET_FILE:lab> tessera
        $<$<BOOL:${TESSERA_WITH_CUDA}>:CUDA::cudart_static> OpenMP::OpenMP_C m -Wl,-z,lazy)
endforeach()

# Levels that a machine does not choose: avx512bf16 where it does not pay; and AMX on processors
# without its unit, whose kernel and the table of levels stand here in the place of the library's.
foreach(level avx512bf16 amx)
    if(TARGET tessera_cpu_${level})
        add_executable(${level} tests/kernels/bf16_pairs.c)
        target_compile_definitions(${level} PRIVATE LEVEL="${level}")
        target_link_libraries(${level} PRIVATE tessera_warnings lab)
        add_test(NAME ${level} COMMAND ${level})
        set_tests_properties(${level} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
    endif()
endforeach()
# Tiles of AMX are loaded under the sanitizers' eyes where C stands for its unit.
if(TARGET tessera_cpu_amx AND CMAKE_C_FLAGS MATCHES "-fsanitize=address")
    tessera_room(amx_emulated SOURCES src/cpu/forward/attention.c src/cpu/backward/keys.c
        src/cpu/backward/rows.c src/cpu/mlp/up.c src/cpu/mlp/down.c INCLUDES include src src/cpu)
    target_compile_definitions(amx_emulated PRIVATE CPU_LEVEL=amx)
    target_compile_options(amx_emulated PRIVATE
        $<TARGET_PROPERTY:tessera_cpu_amx,COMPILE_OPTIONS>
        -include ${PROJECT_SOURCE_DIR}/tests/kernels/amx_emulated.h)
    target_sources(amx PRIVATE src/cpu/table.c $<TARGET_OBJECTS:amx_emulated>)
    target_compile_definitions(amx PRIVATE CPU_AMX_EMULATED)
    target_include_directories(amx PRIVATE src src/cpu)
endif()
foreach(level_ulp "avx512 1.84" "avx2 1.16")
    separate_arguments(level_ulp)
    list(POP_FRONT level_ulp level ulp)
    if(TARGET tessera_cpu_${level})
        add_executable(exponential_${level} tests/kernels/exponential.c)
        target_compile_options(exponential_${level} PRIVATE
            $<TARGET_PROPERTY:tessera_cpu_${level},COMPILE_OPTIONS>)
        target_compile_definitions(exponential_${level} PRIVATE ULP=${ulp})
        target_include_directories(exponential_${level} PRIVATE src/cpu)
        target_link_libraries(exponential_${level} PRIVATE tessera_warnings m)
        add_test(NAME exponential_${level} COMMAND exponential_${level})
        set_tests_properties(exponential_${level} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
    endif()
endforeach()

# The program, from the outside; make_files makes the files that it is given, read_files reads those
# that it wrote, verify_fails and bench_fails are a verify and a bench that find faults.
add_executable(make_files tests/files/make_files.c)
target_link_libraries(make_files PRIVATE tessera_warnings tool_files)
add_executable(read_files tests/files/read_files.c)
target_link_libraries(read_files PRIVATE tessera_warnings tool_files PNG::PNG)
add_executable(verify_fails tests/scripts/verify_fails.c tools/cli/arguments.c tools/cli/reference.c
    tools/cli/sweep.c tools/cli/sweep_lists.c tools/cli/sweep_mlp.c tools/cli/verify.c)
target_link_libraries(verify_fails PRIVATE tessera_warnings tool_files
    -Wl,--wrap=lab_check,--wrap=lab_seconds)
add_executable(verify_teams tests/scripts/verify_teams.c ${every_team} tools/cli/arguments.c
    tools/cli/reference.c tools/cli/sweep.c tools/cli/sweep_lists.c tools/cli/sweep_mlp.c tools/cli/verify.c)
target_link_libraries(verify_teams PRIVATE tessera_warnings tool_files -Wl,--wrap=threads_pay)
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release") # faults of threads show with checks, whose builds have it
    add_test(NAME verify_teams COMMAND verify_teams --quick --backend cpu)
    set_tests_properties(verify_teams PROPERTIES TIMEOUT 300 COST 60)
endif()
add_executable(gradcheck_fails tests/scripts/gradcheck_fails.c tools/cli/arguments.c tools/cli/gradcheck.c
    tools/cli/gradcheck_probe.c tools/cli/reference.c)
target_link_libraries(gradcheck_fails PRIVATE tessera_warnings tool_files -Wl,--wrap=lab_run_whole)
add_executable(bench_fails tests/scripts/bench_fails.c)
target_link_libraries(bench_fails PRIVATE tessera_warnings bench
    -Wl,--wrap=tess_run,--wrap=tess_spmm,--wrap=bench_softmax_naive)
add_test(NAME bench COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/bench.sh $<TARGET_FILE:tessera_tool>)
add_test(NAME tool COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/tool.sh $<TARGET_FILE:tessera_tool>)
set_tests_properties(tool bench PROPERTIES TIMEOUT 300)
add_test(NAME plots COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/plots.sh $<TARGET_FILE:tessera_tool>)
set_tests_properties(plots PROPERTIES SKIP_RETURN_CODE 77)

add_test(NAME manual COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/manual.sh $<TARGET_FILE:tessera_tool>
    ${PROJECT_SOURCE_DIR}/docs/man/tessera.1)

# Sizes, and the project as a whole: the same for every build type, so only one runs them.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
    tessera_test(promises large SOURCES tests/support/support.c)
    tessera_test(promises gradients_large SOURCES tests/support/support.c)
    add_test(NAME neon COMMAND ${PROJECT_SOURCE_DIR}/tests/kernels/neon.sh neon)
    add_test(NAME aarch64_portable CONFIGURATIONS Long
        COMMAND ${PROJECT_SOURCE_DIR}/tests/kernels/neon.sh portable)
    set_tests_properties(neon aarch64_portable PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
    add_test(NAME arrows COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/arrows.sh)
    add_test(NAME fit COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/fit.sh)
    add_test(NAME by_hand COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/by_hand.sh)
    add_test(NAME words COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/words.sh)
    add_test(NAME launches COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/launches.sh)
    set(pages README.md docs/choosing.md docs/performance.md)
    add_test(NAME numbers COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/numbers.sh ${pages})
    add_test(NAME numbers_fails COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/numbers_fails.sh ${pages})
    add_test(NAME links COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/links.sh)
    add_test(NAME pages COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/pages.sh $<TARGET_FILE:tessera_tool>
        ${CMAKE_C_COMPILER} ${PROJECT_SOURCE_DIR}/docs/choosing.md ${PROJECT_SOURCE_DIR}/docs/coming_from.md)
    add_test(NAME pages_fails COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/pages_fails.sh
        $<TARGET_FILE:tessera_tool> ${CMAKE_C_COMPILER})
    add_test(NAME header COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/header.sh
        ${PROJECT_SOURCE_DIR}/include)
    add_test(NAME symbols COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/symbols.sh $<TARGET_FILE:tessera>
        $<TARGET_FILE:tessera_static> ${PROJECT_SOURCE_DIR}/include/tessera.h)
    add_executable(dlclose tests/package/dlclose.c)
    target_include_directories(dlclose PRIVATE include)
    target_link_libraries(dlclose PRIVATE tessera_warnings ${CMAKE_DL_LIBS})
    add_test(NAME dlclose COMMAND dlclose $<TARGET_FILE:tessera>)
    add_test(NAME clang COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/clang.sh)
    add_test(NAME serial COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/serial.sh ${CMAKE_C_COMPILER})
    add_test(NAME python COMMAND ${PROJECT_SOURCE_DIR}/tests/scripts/python.sh $<TARGET_FILE:tessera>)
    add_test(NAME python_long CONFIGURATIONS Long COMMAND ${CMAKE_COMMAND} -E env TESSERA_LONG=1
        ${PROJECT_SOURCE_DIR}/tests/scripts/python.sh $<TARGET_FILE:tessera>)
    set_tests_properties(clang python python_long PROPERTIES SKIP_RETURN_CODE 77)
    set_tests_properties(serial PROPERTIES TIMEOUT 600)
    add_test(NAME package COMMAND ${PROJECT_SOURCE_DIR}/tests/package/test.sh
        ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER} c++)
    add_test(NAME debian_packages COMMAND ${PROJECT_SOURCE_DIR}/tests/package/deb.sh
        ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
    add_test(NAME abi COMMAND ${PROJECT_SOURCE_DIR}/tests/package/abi.sh ${CMAKE_C_COMPILER})
    add_test(NAME newcomer COMMAND ${PROJECT_SOURCE_DIR}/tests/newcomer.sh
        ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER} c++)
    set_tests_properties(newcomer PROPERTIES TIMEOUT 600)
    set_tests_properties(debian_packages abi PROPERTIES SKIP_RETURN_CODE 77)
    set_tests_properties(header package PROPERTIES ENVIRONMENT "CC=${CMAKE_C_COMPILER}")

    # Beside one another those that take longest begin first; each of these installs the build; and this one
    # compares times and bytes.
    set_tests_properties(newcomer serial neon PROPERTIES COST 90)
    set_tests_properties(package debian_packages newcomer PROPERTIES RESOURCE_LOCK install)
    set_tests_properties(large PROPERTIES RUN_SERIAL ON)
endif()
