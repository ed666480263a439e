# libtessera.so and libtessera.a from the same objects, and how they are installed.
add_library(tessera SHARED)
add_library(tessera_static STATIC)
add_library(tessera::tessera ALIAS tessera)
add_library(tessera::tessera_static ALIAS tessera_static)
set_target_properties(tessera PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/tessera.map)
set_target_properties(tessera_static PROPERTIES OUTPUT_NAME tessera)
target_link_options(tessera PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/src/tessera.map)

# Whoever links the static library also links what it needs. Once installed these are plain libraries,
# so that a consumer needs no language but its own: names where every compiler finds them (gcc's
# OpenMP), else paths (clang's).
set(TESSERA_STATIC_LIBS m)
foreach(name ${OpenMP_C_LIB_NAMES})
    if(name MATCHES "^(gomp|pthread)$")
        list(APPEND TESSERA_STATIC_LIBS ${name})
    else()
        list(APPEND TESSERA_STATIC_LIBS ${OpenMP_${name}_LIBRARY})
    endif()
endforeach()
foreach(library tessera tessera_static)
    target_sources(${library} PRIVATE $<TARGET_PROPERTY:tessera_objects,INTERFACE_SOURCES>)
    set_target_properties(${library} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(${library} INTERFACE
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
target_link_libraries(tessera PRIVATE OpenMP::OpenMP_C m)
target_link_libraries(tessera_static INTERFACE
    $<BUILD_INTERFACE:OpenMP::OpenMP_C> $<BUILD_INTERFACE:m>
    "$<INSTALL_INTERFACE:${TESSERA_STATIC_LIBS}>")
if(TESSERA_WITH_CUDA)
    target_link_libraries(tessera PRIVATE CUDA::cudart_static)
    target_link_libraries(tessera_static INTERFACE CUDA::cudart_static)
endif()

# Part of another project, of which only what it links is built.
if(NOT TESSERA_INSTALL)
    if(NOT PROJECT_IS_TOP_LEVEL)
        set_target_properties(tessera tessera_static PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    return()
endif()

install(TARGETS tessera tessera_static EXPORT tesseraTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev
    ARCHIVE COMPONENT dev)
install(FILES include/tessera.h TYPE INCLUDE COMPONENT dev)
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
