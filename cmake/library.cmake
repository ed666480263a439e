# libtessera.so and libtessera.a from the same objects, and how they are installed.
add_library(tessera SHARED)

# The static library is one object, in which all names but the public ones are local: a program may
# have an error_set() of its own, and its backend_get() is never called in place of ours. A plain
# linker cannot read what -flto leaves; the compiler's own then makes code of it.
set(linker ${CMAKE_LINKER} -r)
string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
if(CMAKE_INTERPROCEDURAL_OPTIMIZATION OR "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}" MATCHES "-flto")
    separate_arguments(linker UNIX_COMMAND
        "${CMAKE_C_COMPILER} ${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}} -flto -r -nostdlib")
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        list(APPEND linker -flinker-output=nolto-rel)
    endif()
elseif(TESSERA_WITH_CUDA)
    list(APPEND linker --force-group-allocation) # of templates: local names cannot lead a group
endif()
set(objects $<TARGET_PROPERTY:tessera_objects,INTERFACE_SOURCES>)
set(whole ${PROJECT_BINARY_DIR}/tessera_whole.o)
add_custom_command(OUTPUT ${whole}
    COMMAND ${linker} -o ${whole} ${objects}
    COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=tess_* ${whole}
    DEPENDS ${objects} COMMAND_EXPAND_LISTS VERBATIM)
add_library(tessera_static STATIC ${whole})
get_property(rooms GLOBAL PROPERTY TESSERA_ROOMS)
add_dependencies(tessera_static ${rooms}) # whose objects the command above joins

# The same objects with their names, for tests of what is inside, the lab and the program.
add_library(tessera_inside STATIC)
add_library(tessera::tessera ALIAS tessera)
add_library(tessera::tessera_static ALIAS tessera_static)
set_target_properties(tessera PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/tessera.map)
set_target_properties(tessera_static PROPERTIES OUTPUT_NAME tessera)
# OpenMP's threads outlive a run: the code that they wait in must not be unmapped by dlclose.
target_link_options(tessera PRIVATE
    LINKER:--version-script=${PROJECT_SOURCE_DIR}/src/tessera.map LINKER:-z,nodelete)

# Whoever links the static library also links what it needs. Once installed these are plain libraries,
# so that a consumer needs no language but its own: names where every compiler finds them (gcc's
# OpenMP), else paths (clang's).
set(TESSERA_STATIC_LIBS m)
if(NOT TESSERA_OPENMP)
    set(OpenMP_C_LIB_NAMES "")
endif()
foreach(name ${OpenMP_C_LIB_NAMES})
    if(name MATCHES "^(gomp|pthread)$")
        list(APPEND TESSERA_STATIC_LIBS ${name})
    else()
        list(APPEND TESSERA_STATIC_LIBS ${OpenMP_${name}_LIBRARY})
    endif()
endforeach()
foreach(library tessera tessera_inside)
    target_sources(${library} PRIVATE ${objects})
endforeach()
foreach(library tessera tessera_static tessera_inside)
    set_target_properties(${library} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(${library} INTERFACE
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
target_link_libraries(tessera PRIVATE ${TESSERA_THREADS} m)
target_link_libraries(tessera_inside INTERFACE ${TESSERA_THREADS} m)
target_link_libraries(tessera_static INTERFACE
    "$<BUILD_INTERFACE:${TESSERA_THREADS}>" $<BUILD_INTERFACE:m>
    "$<INSTALL_INTERFACE:${TESSERA_STATIC_LIBS}>")
if(TESSERA_WITH_CUDA)
    target_link_libraries(tessera PRIVATE CUDA::cudart_static)
    target_link_libraries(tessera_inside INTERFACE CUDA::cudart_static)
    target_link_libraries(tessera_static INTERFACE CUDA::cudart_static)
endif()

# Part of another project, of which only what it links is built.
if(NOT TESSERA_INSTALL)
    if(NOT PROJECT_IS_TOP_LEVEL)
        set_target_properties(tessera tessera_static PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    return()
endif()

# A wheel (pyproject.toml) has the library alone, beside the modules and under one name.
if(SKBUILD)
    install(FILES $<TARGET_FILE:tessera> RENAME libtessera.so DESTINATION tessera COMPONENT python)
    return()
endif()

install(TARGETS tessera tessera_static EXPORT tesseraTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev
    ARCHIVE COMPONENT dev)
install(FILES include/tessera.h TYPE INCLUDE COMPONENT dev)
# The licence: once where all is installed, and in each Debian package where Debian looks for it.
set(TESSERA_DEBIAN_runtime libtessera${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(TESSERA_DEBIAN_dev libtessera-dev)
set(TESSERA_DEBIAN_tools tessera)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tessera COMPONENT licence)
foreach(component runtime dev tools)
    install(FILES LICENSE RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${TESSERA_DEBIAN_${component}})
endforeach()
install(EXPORT tesseraTargets NAMESPACE tessera:: COMPONENT dev
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/tesseraConfig.cmake.in
    ${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES
    ${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake
    ${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera COMPONENT dev)

list(TRANSFORM TESSERA_STATIC_LIBS REPLACE "^([^/].*)" "-l\\1" OUTPUT_VARIABLE pc_private)
if(TESSERA_WITH_CUDA)
    list(APPEND pc_private -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lpthread)
endif()
list(JOIN pc_private " " TESSERA_PC_PRIVATE)
# Relative to the .pc file itself, so that an installed tree can be moved.
file(RELATIVE_PATH TESSERA_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" TESSERA_PC_PREFIX "${TESSERA_PC_PREFIX}")
# tessera links the shared library. pkg-config cannot choose among two files of one name, not even by
# --static, so the static one has a package of its own.
set(TESSERA_PC_NAME tessera)
set(TESSERA_PC_LIBS -ltessera)
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/package/tessera.pc @ONLY)
set(TESSERA_PC_NAME tessera-static)
set(TESSERA_PC_LIBS "-l:libtessera.a ${TESSERA_PC_PRIVATE}")
set(TESSERA_PC_PRIVATE)
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/package/tessera-static.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/tessera.pc ${PROJECT_BINARY_DIR}/package/tessera-static.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
