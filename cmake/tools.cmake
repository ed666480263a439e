# The lab, the tessera program and the demonstration; the programs stand at the top of the build
# folder.
find_package(OpenMP REQUIRED COMPONENTS C) # the oracle's, also where the library has none
find_package(PNG)
find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
    pkg_check_modules(JANSSON IMPORTED_TARGET jansson)
endif()
if(NOT PNG_FOUND OR NOT JANSSON_FOUND)
    message(FATAL_ERROR "The tessera program needs libpng and jansson:\n"
        "  apt-get install -y pkg-config libpng-dev libjansson-dev\n"
        "Without it, configure with -DTESSERA_BUILD_TOOLS=OFF -DTESSERA_BUILD_TESTS=OFF.")
endif()

# What tests, bench and tools share. It sees the public header only; device/cuda.c and the kernel
# that empties the cache for it see CUDA too.
if(TESSERA_WITH_CUDA)
    tessera_room(lab_flush SOURCES lab/device/flush.cu INCLUDES .)
    target_compile_options(lab_flush PRIVATE ${TESSERA_CUDA_OPTIONS})
    target_include_directories(lab_flush SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
add_library(lab STATIC
    lab/case/case.c lab/case/choice.c lab/case/problem.c lab/case/rules.c
    lab/check/check.c lab/check/check_backward.c lab/check/check_mlp.c lab/check/compare.c lab/check/identities.c
    lab/device/device.c lab/device/timer.c lab/device/$<IF:$<BOOL:${TESSERA_WITH_CUDA}>,cuda,none>.c
    lab/files/cases.c lab/files/output.c
    lab/fill/fill.c lab/fill/half.c
    lab/lists/chosen.c lab/lists/draw.c lab/lists/listed.c lab/lists/listing.c lab/lists/place.c lab/lists/source.c
    lab/memory/guard.c lab/memory/mirror.c
    lab/oracle/gradients.c lab/oracle/mlp.c lab/oracle/oracle.c
    lab/run/backward.c lab/run/base.c lab/run/cache.c lab/run/mlp.c lab/run/modifiers.c lab/run/run.c lab/run/setting.c lab/run/sums.c
    $<$<BOOL:${TESSERA_WITH_CUDA}>:$<TARGET_OBJECTS:lab_flush>>)
if(TESSERA_WITH_CUDA)
    target_link_libraries(lab PRIVATE CUDA::cudart_static)
endif()
target_include_directories(lab PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(lab PRIVATE tessera_warnings PUBLIC tessera_inside OpenMP::OpenMP_C m)

# Readers and writers of files, which the tests use as well.
add_library(tool_files STATIC
    tools/io/lists_file.c tools/io/mapped_file.c tools/io/npy.c tools/io/report.c tools/io/safetensors.c
    tools/io/tensor.c tools/io/tensor_file.c)
target_include_directories(tool_files PUBLIC tools)
target_link_libraries(tool_files PRIVATE tessera_warnings PUBLIC lab PkgConfig::JANSSON)

# Kernels for the benchmark alone; cuBLAS, cuSPARSE, OpenBLAS and NVML are looked for when it runs.
set(bench_kernels bench/baselines/cuda_none.c)
if(TESSERA_WITH_CUDA)
    tessera_room(bench_cuda SOURCES bench/baselines/dense.cu bench/baselines/read.cu INCLUDES include bench)
    target_compile_options(bench_cuda PRIVATE ${TESSERA_CUDA_OPTIONS})
    target_include_directories(bench_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    set(bench_kernels $<TARGET_OBJECTS:bench_cuda>)
endif()

add_custom_target(bench_commit
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D OUT=${PROJECT_BINARY_DIR}/commit/commit.h
        -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake
    BYPRODUCTS ${PROJECT_BINARY_DIR}/commit/commit.h)
add_library(bench STATIC
    bench/baselines/blocks.c bench/baselines/cublas.c bench/baselines/cusparse.c bench/baselines/dense.c
    bench/baselines/library.c bench/baselines/naive.c bench/baselines/openblas.c
    bench/baselines/peer_check.c bench/baselines/sparse.c
    bench/measure/backward.c bench/measure/floor.c bench/measure/layer.c bench/measure/lists.c
    bench/measure/measure.c bench/measure/mlp.c bench/measure/peak.c bench/measure/place.c bench/measure/sample.c
    bench/measure/throttle.c bench/measure/timing.c bench/measure/trial.c
    bench/run/against.c bench/run/baseline.c bench/run/bench.c bench/run/cases.c bench/run/options.c
    bench/run/results.c ${bench_kernels})
add_dependencies(bench bench_commit)
target_include_directories(bench PRIVATE ${PROJECT_BINARY_DIR}/commit)
target_include_directories(bench PUBLIC bench)
target_link_libraries(bench PRIVATE tessera_warnings
    PUBLIC lab PkgConfig::JANSSON ${CMAKE_DL_LIBS})

add_executable(tessera_tool
    tools/cli/arguments.c tools/cli/attention_input.c tools/cli/attention_output.c tools/cli/compute.c
    tools/cli/gradcheck.c tools/cli/gradcheck_probe.c tools/cli/info.c tools/cli/main.c
    tools/cli/memory_limit.c tools/cli/modifier_options.c tools/cli/pattern.c tools/cli/pattern_options.c tools/cli/pattern_select.c tools/picture/picture.c
    tools/picture/svg.c tools/cli/plan.c tools/cli/reference.c tools/cli/run.c tools/cli/sweep.c
    tools/cli/sweep_lists.c tools/cli/sweep_mlp.c tools/cli/verify.c)
set_target_properties(tessera_tool PROPERTIES OUTPUT_NAME tessera)
target_link_libraries(tessera_tool PRIVATE tessera_warnings bench tool_files PNG::PNG)
if(TESSERA_INSTALL)
    install(TARGETS tessera_tool COMPONENT tools)
    install(FILES docs/man/tessera.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
endif()

add_executable(tessera_demo tools/demo/demo.c tools/demo/blocks.c)
target_link_libraries(tessera_demo PRIVATE tessera_warnings tool_files)
