# libFuzzer targets of the parts that read what strangers made: block lists, specs, files.
add_custom_target(fuzz)
foreach(name fuzz_lists fuzz_npy fuzz_safetensors)
    add_executable(${name} EXCLUDE_FROM_ALL tests/fuzz/${name}.c)
    target_include_directories(${name} PRIVATE tests)
    target_link_libraries(${name} PRIVATE tessera_warnings tool_files)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzz ${name})
endforeach()
